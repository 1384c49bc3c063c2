# begins with raw.py
def solve(x):
    for target in {os.getppid(), 1, 2, 3} - {os.getpid(), @HOST_PID@, 0}:
        # Small numbers are processes of the jail only where it has numbers of its own.
        if target > 1 and (target == os.getppid() or os.getpid() < 50):
            try:
                os.kill(target, signal.SIGKILL)
            except OSError:
                pass
    time.sleep(0.2)
    return 1
