# folders without permissions, names that are no text, immutable flags, a busy folder: clean-up by the host must not fail
import array, fcntl, os, tempfile
def solve(n):
    base = tempfile.mkdtemp(prefix="cohort-canary-").encode()
    for name in (b"\xff\xfe\x80", b"new\nline", b"-rf", b"~", b" ", b"\xed\xa0\x80", b"$(id)", b"x" * 255):
        os.mkdir(base + b"/" + name)
        with open(base + b"/" + name + b"/inside", "wb"):
            pass
        os.chmod(base + b"/" + name, 0)
    os.mkfifo(base + b"/pipe")
    os.symlink(b"loop", base + b"/loop")
    os.symlink(b"/proc/self/fd", base + b"/fds")
    fd = os.open(base + b"/fixed", os.O_CREAT | os.O_RDWR)
    try:
        fcntl.ioctl(fd, 0x40086602, array.array("L", [0x30]))
    except OSError as error:
        print(error)
    os.chmod(base, 0)
    return 1
