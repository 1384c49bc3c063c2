# one file, written with sendfile and copy_file_range from itself so that little CPU is used
import os, tempfile
def solve(n):
    folder = tempfile.gettempdir()
    with open(f"{folder}/cohort-canary-a", "w+b") as first, open(f"{folder}/cohort-canary-b", "w+b") as second:
        first.write(os.urandom(1 << 20))
        first.flush()
        for _ in range(12):
            size = os.fstat(first.fileno()).st_size
            os.lseek(second.fileno(), 0, os.SEEK_END)
            os.sendfile(second.fileno(), first.fileno(), 0, size)
            os.lseek(first.fileno(), 0, os.SEEK_END)
            os.sendfile(first.fileno(), second.fileno(), 0, size)
        return os.fstat(first.fileno()).st_size
