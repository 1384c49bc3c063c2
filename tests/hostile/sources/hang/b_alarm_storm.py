# a timer a million times a second, plus queued real-time signals, so that nothing else gets done
import os, signal
signal.signal(signal.SIGALRM, lambda *a: None)
signal.signal(signal.SIGRTMIN, lambda *a: None)
def solve(n):
    signal.setitimer(signal.ITIMER_REAL, 1e-6, 1e-6)
    while True:
        os.kill(os.getpid(), signal.SIGRTMIN)
