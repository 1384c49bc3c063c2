# begins with raw.py
def solve(x):
    block = (ctypes.c_uint32 * 32)(1, 112)
    for process in (0, -1, @HOST_PID@):
        refused('perf_event_open', ctypes.byref(block), process, -1 if process >= 0 else 0, -1, 0)
    return 1
