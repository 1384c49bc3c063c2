# begins with raw.py
def solve(x):
    held = (ctypes.c_uint32 * 6)()
    if libc.capget((ctypes.c_uint32 * 2)(0x20080522, 0), held) == 0 and any(held):
        breach(f'capabilities {list(held)}')
    syscall('capset', (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6))
    if libc.capget((ctypes.c_uint32 * 2)(0x20080522, 0), held) == 0 and any(held):
        breach(f'capabilities taken back: {list(held)}')
    if os.getuid() == 0:
        breach('runs as root')
    for change in (os.setuid, os.setgid, os.seteuid, os.setegid):
        try:
            change(0)
            breach('became root')
        except OSError:
            pass
    if 0 in os.getgroups():
        breach('in the group of root')
    return 1
