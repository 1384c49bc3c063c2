# memfd files written and never mapped: an address-space limit does not see them
import os
def solve(n):
    held, block, total = [], b"\x5a" * (1 << 20), 0
    while total < 4096:
        fd = os.memfd_create("cohort")
        held.append(fd)
        for _ in range(64):
            os.write(fd, block)
            total += 1
    return total
