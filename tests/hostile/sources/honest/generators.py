
def primes():
    found = []
    candidate = 2
    while True:
        if all(candidate % p for p in found):
            found.append(candidate)
            yield candidate
        candidate += 1
def solve(n):
    source = primes()
    return [next(source) for _ in range(n)]
