def solve(x):
    return 9 ** 9 ** 9 % 10
