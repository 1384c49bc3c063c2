# begins with raw.py
def solve(x):
    for number in (signal.SIGWINCH, signal.SIGURG):
        for target in (-1, @HOST_PID@, -@HOST_PID@, os.getppid()):
            if target in (0, 1):
                continue
            try:
                os.kill(target, number)
            except OSError:
                pass
        syscall('tgkill', @HOST_PID@, @HOST_PID@, int(number))
        syscall('tkill', @HOST_PID@, int(number))
        syscall('rt_sigqueueinfo', @HOST_PID@, int(number), ctypes.create_string_buffer(128))
        descriptor, error = syscall('pidfd_open', @HOST_PID@, 0)
        if descriptor >= 0:
            syscall('pidfd_send_signal', descriptor, int(number), None, 0)
            if syscall('pidfd_getfd', descriptor, 1, 0)[0] >= 0:
                breach('took a descriptor of the host')
    return 1
