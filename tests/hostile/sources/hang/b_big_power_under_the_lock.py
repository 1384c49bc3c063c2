# one big-integer operation in C that takes minutes and checks no signal
def solve(n):
    return pow(7, 10**9) % 10
