# begins with stay.py
def solve(x):
    for flag in (0x10000000, 0x00020000, 0x20000000, 0x40000000, 0x08000000, 0x04000000, 0x02000000):
        result, error = syscall('clone', flag | 17, 0, 0, 0, 0)
        if result == 0:
            stay()
        if result > 0:
            breach(f'a namespace by clone, flag {flag:#x}')
    return 1
