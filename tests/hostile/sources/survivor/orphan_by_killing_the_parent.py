# begins with stay.py
def solve(x):
    if os.fork() == 0:
        os.setsid()
        time.sleep(0.05)
        stay()
    parent = os.getppid()
    if parent > 1 and parent != @HOST_PID@:
        try:
            os.kill(parent, signal.SIGKILL)
        except OSError:
            pass
    os.kill(os.getpid(), signal.SIGKILL)
