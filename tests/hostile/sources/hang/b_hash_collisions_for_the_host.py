# keys with equal hashes: rebuilding the value takes quadratic time, and the host's time is not limited as the jail's is
MODULUS = (1 << 61) - 1
def solve(n):
    if n == 17:
        return {i * MODULUS: 0 for i in range(1, 4_000)}
    if n == 18:
        return {(i * MODULUS,) for i in range(1, 4_000)}
    return [{i * MODULUS for i in range(1, 1_500)} for _ in range(60)]
