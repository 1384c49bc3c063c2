# catches MemoryError, keeps what it has and answers from the edge: can the runner still send a reply
def solve(n):
    held, size = [], 1 << 28
    while size > 64:
        try:
            held.append(bytearray(size))
            if len(held) > 4096 and size > 1 << 20:
                break
        except MemoryError:
            size //= 2
    solve.held = held
    return "x" * 1000
