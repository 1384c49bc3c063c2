# makes itself the reaper of its descendants, so that they are not adopted by the supervisor, then dies
import ctypes, os, signal, sys, time
libc = ctypes.CDLL(None)
def solve(n):
    libc.prctl(36, 1, 0, 0, 0)
    libc.prctl(1, 0, 0, 0, 0)
    for _ in range(5):
        if os.fork() == 0:
            libc.prctl(36, 1, 0, 0, 0)
            os.setsid()
            for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            if os.fork() == 0:
                os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(100)  # @MARKER@"])
            time.sleep(100)
            os._exit(0)
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)
