# begins with raw.py
def solve(x):
    area = ctypes.create_string_buffer(64)
    local = (ctypes.c_uint64 * 2)(ctypes.addressof(area), 64)
    start = 0
    for process in {@HOST_PID@, os.getppid(), 1} - {os.getpid()}:
        try:
            start = int(open(f'/proc/{process}/maps').readline().split('-')[0], 16)
            breach(f'read the maps of {process}')
        except (OSError, ValueError):
            start = 0x400000
        remote = (ctypes.c_uint64 * 2)(start, 64)
        for name in ('process_vm_readv', 'process_vm_writev'):
            result, error = syscall(name, process, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
            if result > 0 or (result < 0 and error == errno.EFAULT):
                breach(f'{name} of {process} got as far as its memory')
        try:
            os.open(f'/proc/{process}/mem', os.O_RDWR)
            breach(f'opened the memory of {process}')
        except OSError:
            pass
    return 1
