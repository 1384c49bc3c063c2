# waits for more input than it was given, on every descriptor and on the terminal
import os, sys
sys.stdin.read()
while True:
    for fd in (0, 1, 2):
        try:
            os.set_blocking(fd, True)
            os.read(fd, 1)
        except OSError:
            pass
    try:
        open("/dev/tty").read()
    except OSError:
        pass
