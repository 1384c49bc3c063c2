# touches one page in every two megabytes of a sparse mapping: little data, much bookkeeping
import mmap
def solve(n):
    area = mmap.mmap(-1, 1 << 40, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
    for offset in range(0, 1 << 40, 1 << 21):
        area[offset] = 1
    return len(area)
