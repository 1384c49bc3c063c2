def solve(x):
    kept, size = [], 2 ** 26
    while sum(map(len, kept)) < 3 * 2 ** 30:
        try:
            kept.append(b'x' * size)
        except MemoryError:
            size = max(size // 2, 16)
