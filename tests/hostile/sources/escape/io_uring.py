# begins with raw.py
def solve(x):
    area = (ctypes.c_uint32 * 64)()
    refused('io_uring_setup', 8, ctypes.byref(area))
    return 1
