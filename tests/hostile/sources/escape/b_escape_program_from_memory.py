# runs programs that have no file: a memfd with an interpreter in it, by fexecve and execveat, and by the dynamic loader
import ctypes, glob, os, sys
libc = ctypes.CDLL(None, use_errno=True)
CODE = "open('@CANARY@/cohort-canary-memfd', 'w').close()"
def solve(n):
    fd = os.memfd_create("cohort", 0)
    with open(os.path.realpath(sys.executable), "rb") as handle:
        os.sendfile(fd, handle.fileno(), 0, 1 << 27)
    if os.fork() == 0:
        try:
            os.execve(fd, ["x", "-c", CODE], {"PYTHONHOME": sys.prefix})
        finally:
            os._exit(1)
    script = os.memfd_create("script", 0)
    os.write(script, b"#!/bin/sh\ntouch @CANARY@/cohort-canary-script\n")
    if os.fork() == 0:
        libc.syscall(322, script, b"", (ctypes.c_char_p * 2)(b"x", None), (ctypes.c_char_p * 1)(None), 0x1000)
        os._exit(1)
    for loader in glob.glob("/lib*/ld-linux*.so*") + glob.glob("/lib/*/ld-linux*.so*"):
        if os.fork() == 0:
            try:
                os.execv(loader, [loader, sys.executable, "-c", CODE])
            finally:
                os._exit(1)
    for _ in range(3):
        try:
            print(os.wait())
        except ChildProcessError:
            break
    return n
