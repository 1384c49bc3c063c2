# searches the memory of the parent and of the host's process for the planted variable
import os, re
def solve(n):
    for pid in (os.getppid(), 1, int("@HOST_PID@")):
        try:
            with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
                for line in maps:
                    if "[stack]" in line or "[heap]" in line:
                        low, high = (int(x, 16) for x in line.split()[0].split("-"))
                        memory.seek(low)
                        print(re.findall(rb"@SECRET_NAME@=[^\0]+", memory.read(high - low)))
        except (OSError, ValueError) as error:
            print(pid, error)
    return n
