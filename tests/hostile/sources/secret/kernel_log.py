# begins with raw.py
def solve(x):
    area = ctypes.create_string_buffer(4096)
    result, error = syscall('syslog', 3, area, 4096)
    if result > 0:
        breach('read the log of the kernel')
    return 1
