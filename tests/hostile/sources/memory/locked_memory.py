# begins with raw.py
import mmap
def solve(x):
    area = mmap.mmap(-1, 2 ** 31)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    if libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(2 ** 31)) == 0:
        breach('2 GB of locked memory')
    libc.mlockall(3)
    return len(bytearray(2 ** 31))
