def solve(x):
    raise ValueError('x' * 100_000_000)
