# asks the parent and process 1 to end, hang up, dump core and reload, politely and less politely
import os, signal
def solve(n):
    host = int("@HOST_PID@")
    for pid in {os.getppid(), 1} - {0, host}:
        for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTERM", "SIGPIPE", "SIGALRM", "SIGCHLD"):
            try:
                os.kill(pid, getattr(signal, name))
            except OSError:
                pass
    return n
