
import base64, binascii, bz2, gzip, hashlib, hmac, lzma, struct, zlib
def solve(text):
    data = text.encode()
    packed = [zlib.compress(data), gzip.compress(data), bz2.compress(data), lzma.compress(data)]
    opened = [zlib.decompress(packed[0]), gzip.decompress(packed[1]), bz2.decompress(packed[2]), lzma.decompress(packed[3])]
    return [hashlib.sha256(data).hexdigest()[:16], hmac.new(b"k", data, "sha1").hexdigest()[:8], base64.b64encode(data),
            binascii.crc32(data), struct.unpack(">H", struct.pack(">H", 513))[0], opened == [data] * 4]
