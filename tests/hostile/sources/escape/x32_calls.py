# begins with raw.py
def solve(x):
    if platform.machine() != 'x86_64':
        return 'not this machine'
    for number, arguments in ((0x40000000 | 41, (2, 1, 0)), (0x40000000 | 272, (0x10000000,)), (0x40000000 | 57, ())):
        ctypes.set_errno(0)
        result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(value) for value in arguments])
        if result == 0 and number & 0xFF == 57:
            os._exit(0)
        if result >= 0:
            breach(f'x32 call {number:#x}')
    return 1
