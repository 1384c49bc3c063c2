# opens files until none are left, in many processes, and keeps them
import os, resource, time
def solve(n):
    try:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        pass
    for _ in range(4):
        os.fork()
    held = []
    try:
        for _ in range(20_000):
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    time.sleep(5)
    return len(held)
