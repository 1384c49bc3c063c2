# sixty files of fifty megabytes by sixteen processes: each file and each process under a per-file limit
import os, tempfile
def solve(n):
    folder = tempfile.gettempdir()
    pids = []
    for worker in range(16):
        pid = os.fork()
        if pid == 0:
            for i in range(4):
                try:
                    with open(f"{folder}/cohort-canary-{worker}-{i}", "wb") as handle:
                        for _ in range(50):
                            handle.write(b"\x5a" * (1 << 20))
                except OSError:
                    pass
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    return sum(os.stat(f"{folder}/{name}").st_size for name in os.listdir(folder) if name.startswith("cohort-canary-"))
