import zlib
def solve(x):
    packer = zlib.compressobj()
    packed = b''.join(packer.compress(bytes(2 ** 20)) for _ in range(3000)) + packer.flush()
    return len(zlib.decompress(packed))
