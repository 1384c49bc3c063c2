# children with large memories that dump core where they stand
import os, resource, signal
def solve(n):
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (-1, -1))
    except (OSError, ValueError):
        pass
    for i in range(20):
        pid = os.fork()
        if pid == 0:
            block = bytearray(os.urandom(1 << 20)) * 60
            os.kill(os.getpid(), (signal.SIGSEGV, signal.SIGQUIT, signal.SIGABRT)[i % 3])
            os._exit(len(block) & 1)
        os.waitpid(pid, 0)
    return [name for name in os.listdir(".") if "core" in name]
