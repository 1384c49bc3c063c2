# begins with raw.py
def solve(x):
    syscall('personality', 0x0400000 | 0x0040000)
    syscall('personality', 8)
    syscall('personality', 0xFFFFFFFF)
    return 1
