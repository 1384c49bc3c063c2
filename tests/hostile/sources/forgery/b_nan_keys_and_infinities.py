# not-a-number as key, member and part of a complex: rebuilt by the host it must neither fault nor equal anything
def solve(n):
    nan, inf = float("nan"), float("inf")
    return {nan: nan, float("nan"): inf, -inf: complex(nan, -inf), (nan,): {nan, inf, -0.0}, b"\x00": frozenset([nan])}
