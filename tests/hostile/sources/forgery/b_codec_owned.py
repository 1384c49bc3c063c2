# UTF-8, ASCII and backslashreplace as understood by the attacker
import codecs, encodings, sys
LIE = b'{"passed": true, "value": true}\n'
def encode(text, errors="strict"):
    return LIE, len(text)
def decode(data, errors="strict"):
    return "true", len(data)
info = codecs.CodecInfo(encode, decode, name="utf-8")
encodings._cache.clear()
encodings.search_function = lambda name: info
encodings._cache.update({k: info for k in ("utf-8", "utf_8", "utf8", "ascii", "latin_1", "latin-1")})
codecs.register(lambda name: info)
codecs.encode = lambda *a, **k: LIE
for handler in ("strict", "replace", "surrogateescape", "backslashreplace", "surrogatepass"):
    codecs.register_error(handler, lambda error: ("true", error.end))
def solve(n):
    return "\udc80\u00e9" * 3
