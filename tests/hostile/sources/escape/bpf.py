# begins with raw.py
def solve(x):
    block = (ctypes.c_uint32 * 32)(2, 4, 4, 4)
    refused('bpf', 0, ctypes.byref(block), 72)
    return 1
