# a child in the same group stops the whole group, itself last
import os, signal, time
def solve(n):
    try:
        os.setpgid(0, 0)
    except OSError:
        os.setsid()
    if os.fork() == 0:
        time.sleep(0.2)
        os.killpg(os.getpgrp(), signal.SIGSTOP)
    time.sleep(600)
