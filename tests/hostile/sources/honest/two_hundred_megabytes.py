
def solve(n):
    block = bytearray(n)
    block[::4096] = b"x" * len(block[::4096])
    return len(block), block.count(b"x")
