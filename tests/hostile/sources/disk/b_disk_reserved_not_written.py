# fallocate takes the blocks without writing them
import os, tempfile
def solve(n):
    fd = os.open(tempfile.gettempdir() + "/cohort-canary-reserve", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(fd, 0, 3 << 30)
    return os.fstat(fd).st_blocks
