# SIGKILL to itself: an out-of-memory kill, a crash, or the host's own doing
import os, signal
print("partial", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
