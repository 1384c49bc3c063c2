# sleeps in C with the interpreter lock held: no watchdog thread and no Python signal handler ever runs
import ctypes
def solve(n):
    ctypes.PyDLL(None).sleep(600)
