# begins with raw.py
def solve(x):
    for process in {1, @HOST_PID@, os.getppid()}:
        for kind in ('user', 'mnt', 'pid', 'net', 'ipc', 'uts', 'cgroup'):
            try:
                descriptor = os.open(f'/proc/{process}/ns/{kind}', os.O_RDONLY)
            except OSError:
                continue
            refused('setns', descriptor, 0)
        descriptor, error = syscall('pidfd_open', process, 0)
        if descriptor >= 0:
            refused('setns', descriptor, 0x20000)
    return 1
