import mmap
def solve(x):
    area = mmap.mmap(-1, 3 * 2 ** 30, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    for place in range(0, 3 * 2 ** 30, 4096):
        area[place] = 1
