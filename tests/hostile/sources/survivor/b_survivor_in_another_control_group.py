# moves itself to another control group, if the tree is writable, before a kill by control group comes
import glob, os, sys
def solve(n):
    moved = []
    for path in ["/sys/fs/cgroup/cgroup.procs", *glob.glob("/sys/fs/cgroup/*/cgroup.procs"), *glob.glob("/sys/fs/cgroup/*/*/cgroup.procs")]:
        try:
            with open(path, "w") as handle:
                handle.write(str(os.getpid()))
            moved.append(path)
        except OSError:
            pass
    try:
        os.mkdir("/sys/fs/cgroup/cohort-canary-@MARKER@")
        moved.append("made")
    except OSError:
        pass
    if os.fork() == 0:
        os.setsid()
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(100)  # @MARKER@"])
    print(moved)
    return len(moved)
