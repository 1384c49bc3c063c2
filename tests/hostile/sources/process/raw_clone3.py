# begins with stay.py
def solve(x):
    block = (ctypes.c_uint64 * 11)(0, 0, 0, 0, 17)
    result, error = syscall('clone3', ctypes.byref(block), ctypes.sizeof(block))
    if result == 0:
        stay()
    return [result, error]
