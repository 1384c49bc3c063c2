# leaves the session, the group and the parent behind, closes every descriptor, writes to the canary folder later
import os, sys, time
def solve(n):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 4096)
            os.chdir("/")
            os.execv(sys.executable, [sys.executable, "-c",
                "import time; time.sleep(8); open('@CANARY@/cohort-canary-survived', 'w').write('@MARKER@'); time.sleep(60)"])
        os._exit(0)
    time.sleep(0.3)
    return n
