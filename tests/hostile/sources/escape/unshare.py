# begins with raw.py
def solve(x):
    for flag in (0x10000000, 0x00020000, 0x20000000, 0x40000000, 0x08000000, 0x04000000, 0x02000000, 0x80):
        refused('unshare', flag)
    refused('unshare', 0x10000000 | 0x00020000 | 0x20000000)
    return 1
