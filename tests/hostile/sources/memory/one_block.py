def solve(x):
    kept = bytearray(3 * 2 ** 30)
    kept[::4096] = b'x' * len(kept[::4096])
