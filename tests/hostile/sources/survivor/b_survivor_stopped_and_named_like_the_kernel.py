# a stopped process with an empty command line and the name of a kernel thread
import ctypes, os, signal, sys
libc = ctypes.CDLL(None)
if os.fork() == 0:
    os.setsid()
    libc.prctl(15, b"kworker/0:1", 0, 0, 0)
    pid = os.fork()
    if pid == 0:
        os.execv(sys.executable, ["", "-c", "import os, signal, time\nos.kill(os.getpid(), signal.SIGSTOP)\ntime.sleep(60)  # @MARKER@"])
    os._exit(0)
print("6174")
