# replies of a quarter of a gigabyte, as bytes, as text, as exception message, as class name
def solve(n):
    if n == 17:
        return b"\x00" * (200 << 20)
    if n == 18:
        raise ValueError("\U0001f600" * (20 << 20))
    raise type("N" * (50 << 20), (Exception,), {})()
