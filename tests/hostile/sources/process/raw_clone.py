# begins with stay.py
def solve(x):
    for flags in (17, 17 | 0x8000, 0x100, 17 | 0x800000):
        result, error = syscall('clone', flags, 0, 0, 0, 0)
        if result == 0:
            stay()
    return 1
