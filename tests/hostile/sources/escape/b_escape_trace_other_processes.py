# attaches to the parent, to process 1 and to the host's process, and writes a forged line with their hands
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
def solve(n):
    for pid in (os.getppid(), 1, int("@HOST_PID@")):
        if pid <= 0 or pid == os.getpid():
            continue
        if libc.ptrace(0x4206, pid, None, None) == 0:
            print("ESCAPED traced" if pid == int("@HOST_PID@") else "traced", pid, flush=True)
            libc.ptrace(17, pid, None, None)
        for name in ("mem", "clear_refs", "coredump_filter", "timerslack_ns"):
            try:
                os.close(os.open(f"/proc/{pid}/{name}", os.O_WRONLY))
                print("ESCAPED opened" if pid == int("@HOST_PID@") else "opened", pid, name)
            except OSError:
                pass
    return n
