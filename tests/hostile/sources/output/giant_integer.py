def solve(x):
    return 1 << 60_000_000
