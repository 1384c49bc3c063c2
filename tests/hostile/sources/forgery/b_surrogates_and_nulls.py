# strings no UTF-8 encoder accepts, as value, key and exception text: aims at a fault in the host instead of a zero
def solve(n):
    if n == 18:
        raise ValueError("\ud800\udfff\x00\udc80" * 50)
    if n == 19:
        print("\x00\x1b[2J\u2028", end="")
        raise type("Na\udc80me\x00\n", (Exception,), {})("\udcff")
    return {"\ud800": ["\x00", "\udc80" * 3], "\udfff\ud800": b"\xff\x00"}
