# fills its folders with hard and symbolic links to the canary folder, then changes modes and times through them
import os, tempfile
def solve(n):
    base = tempfile.mkdtemp(prefix="cohort-canary-")
    os.symlink("@CANARY@", base + "/canary")
    os.symlink("@CANARY@", "cohort-canary-here") if os.access(".", os.W_OK) else None
    for name in os.listdir(base + "/canary"):
        path = base + "/canary/" + name
        for attempt in (
            lambda p=path: os.link(p, base + "/hard"),
            lambda p=path: os.utime(p, (1, 1)),
            lambda p=path: os.chmod(p, 0o777),
            lambda p=path: open(p, "ab").write(b"cohort-canary"),
            lambda p=path: os.truncate(p, 0),
            lambda p=path: os.rename(p, p + ".cohort-canary-moved"),
        ):
            try:
                attempt()
            except OSError as error:
                print(error)
    return 1
