# begins with raw.py
def solve(x):
    libc.shmat.restype = ctypes.c_void_p
    held = 0
    for number in range(16):
        segment, error = syscall('shmget', @KEY@ + number, 64 * 2 ** 20, 0o1666)
        if segment < 0:
            break
        breach('System V shared memory was granted')
        address = libc.shmat(segment, None, 0)
        if address not in (None, 2 ** 64 - 1):
            ctypes.memset(address, 1, 64 * 2 ** 20)
            held += 64
    return held
