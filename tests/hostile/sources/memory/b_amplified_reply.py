# empty containers take two bytes on the wire and over fifty in the host
def solve(n):
    return [[] for _ in range(3_000_000)]
