# creates, appends, renames, links and deletes in the canary folder, by every ordinary call
import os, shutil
def solve(n):
    base = "@CANARY@"
    done = []
    for attempt in (
        lambda: open(base + "/cohort-canary-open", "x").close(),
        lambda: os.mkdir(base + "/cohort-canary-mkdir"),
        lambda: os.symlink("/", base + "/cohort-canary-symlink"),
        lambda: os.mkfifo(base + "/cohort-canary-fifo"),
        lambda: os.chmod(base, 0o700),
        lambda: os.utime(base, (1, 1)),
        lambda: [os.unlink(os.path.join(base, name)) for name in os.listdir(base)],
        lambda: shutil.rmtree(base),
        lambda: os.makedirs(base + "/cohort-canary-deep/er"),
    ):
        try:
            attempt()
            done.append(1)
        except OSError as error:
            print(error)
    return len(done)
