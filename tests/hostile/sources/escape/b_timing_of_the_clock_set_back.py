# tries to set the machine's clock to the time it already shows, by clock_settime, settimeofday and adjtimex
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
def solve(n):
    now = time.time()
    stamp = (ctypes.c_long * 2)(int(now), int(now % 1 * 1e9))
    done = []
    if libc.clock_settime(0, ctypes.byref(stamp)) == 0:
        done.append("clock_settime")
    stamp = (ctypes.c_long * 2)(int(time.time()), int(time.time() % 1 * 1e6))
    if libc.settimeofday(ctypes.byref(stamp), None) == 0:
        done.append("settimeofday")
    if done:
        open("@CANARY@/cohort-canary-clock", "w").write(" ".join(done))
    return done
