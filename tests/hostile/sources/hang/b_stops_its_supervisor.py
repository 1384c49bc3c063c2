# SIGSTOP to the parent and to process 1 of the jail: a supervisor inside the jail is frozen while the program spins
import os, signal
def solve(n):
    host = int("@HOST_PID@")
    for pid in (os.getppid(), 1):
        if pid not in (host, 0):
            try:
                os.kill(pid, signal.SIGSTOP)
                os.kill(pid, signal.SIGTSTP)
            except OSError as error:
                print(pid, error)
    while True:
        pass
