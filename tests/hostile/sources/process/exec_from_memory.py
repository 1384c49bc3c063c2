# begins with raw.py
def solve(x):
    descriptor, error = syscall('memfd_create', b'program', 0)
    if descriptor < 0:
        return error
    os.write(descriptor, b'#!/bin/sh\ntouch @CANARY@/memory\nsleep 60\n')
    empty = (ctypes.c_char_p * 1)(None)
    syscall('execveat', descriptor, b'', empty, empty, 0x1000)
    os.execve(f'/proc/self/fd/{descriptor}', ['x'], {})
