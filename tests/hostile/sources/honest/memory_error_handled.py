
def solve(n):
    try:
        return len(bytearray(n))
    except MemoryError:
        return "too much"
