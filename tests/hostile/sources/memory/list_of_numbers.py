def solve(x):
    kept = []
    while len(kept) < 3 * 10 ** 8:
        kept.extend(range(10 ** 6))
