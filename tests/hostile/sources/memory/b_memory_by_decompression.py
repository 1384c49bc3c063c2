# a few kilobytes that unpack, twice, to many gigabytes
import lzma, zlib
def solve(n):
    one = zlib.compress(bytes(1 << 26), 9)
    two = lzma.compress(one * 100)
    out = []
    for _ in range(100):
        stream = lzma.decompress(two)
        while stream:
            engine = zlib.decompressobj()
            out.append(engine.decompress(stream))
            stream = engine.unused_data
            if len(out) > 120:
                return len(out)
    return len(out)
