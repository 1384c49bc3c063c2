# the parent sleeps while children that are reaped at once use the processors, one after the other
import os
def solve(n):
    for _ in range(300):
        pid = os.fork()
        if pid == 0:
            for i in range(8_000_000):
                pass
            os._exit(0)
        os.waitpid(pid, 0)
