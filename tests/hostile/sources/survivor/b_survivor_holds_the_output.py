# the script ends at once, a grandchild keeps its standard output open: end-of-file never comes
import os, sys
print("6174", flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(100)  # @MARKER@"])
os._exit(0)
