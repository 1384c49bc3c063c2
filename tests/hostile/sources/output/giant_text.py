def solve(x):
    return 'x' * 150_000_000
