# begins with raw.py
def solve(x):
    pair = (ctypes.c_uint64 * 2)()
    for process in {@HOST_PID@, os.getppid()} - {0, 1, os.getpid()}:
        refused('prlimit64', process, 4, None, ctypes.byref(pair))
        for what, call in (('priority', lambda: os.setpriority(os.PRIO_PROCESS, process, 19)),
                           ('processors', lambda: os.sched_setaffinity(process, {0})),
                           ('policy', lambda: os.sched_setscheduler(process, os.SCHED_IDLE, os.sched_param(0)))):
            try:
                call()
                breach(f'changed the {what} of {process}')
            except OSError:
                pass
        syscall('ioprio_set', 1, process, (3 << 13))
    return 1
