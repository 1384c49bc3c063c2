# children that end at once and are never waited for: each keeps a process id
import os, time
def solve(n):
    made = 0
    for _ in range(5000):
        try:
            if os.fork() == 0:
                os._exit(0)
            made += 1
        except OSError:
            break
    time.sleep(1)
    return made
