# signals the host's process by number, by group, by pidfd, by queue and by a timer of its own
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
def solve(n):
    host = int("@HOST_PID@")
    for attempt in (
        lambda: os.kill(host, signal.SIGUSR1),
        lambda: os.killpg(host, signal.SIGUSR1),
        lambda: signal.pidfd_send_signal(os.pidfd_open(host), signal.SIGUSR1),
        lambda: libc.sigqueue(host, signal.SIGUSR1, None) == 0 or 1 / 0,
        lambda: libc.syscall(234, host, host, int(signal.SIGUSR1)) == 0 or 1 / 0,
    ):
        try:
            attempt()
            print("ESCAPED signal sent", flush=True)
        except (OSError, ZeroDivisionError) as error:
            print(error)
    return n
