for number in range(6_000):
    open(f'f{number}', 'w').close()
def solve(x):
    return x
