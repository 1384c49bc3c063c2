# begins with stay.py
import pty
def solve(x):
    pid, descriptor = pty.fork()
    if pid == 0:
        stay()
    return 1
