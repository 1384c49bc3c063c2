# the planted variable in os.environ, in the C library, on the process's first stack and in /proc of everyone
import ctypes, os, re
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
def solve(n):
    found = [os.environ.get("@SECRET_NAME@"), libc.getenv(b"@SECRET_NAME@")]
    try:
        with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
            for line in maps:
                if "[stack]" in line or "[heap]" in line:
                    low, high = (int(x, 16) for x in line.split()[0].split("-"))
                    memory.seek(low)
                    found += re.findall(rb"@SECRET_NAME@=[^\0]+", memory.read(high - low))
    except (OSError, ValueError) as error:
        print(error)
    for pid in [p for p in os.listdir("/proc") if p.isdigit()] + ["self", "@HOST_PID@"]:
        for part in ("environ", "cmdline", "auxv"):
            try:
                with open(f"/proc/{pid}/{part}", "rb") as handle:
                    found += re.findall(rb"@SECRET_NAME@=[^\0]*", handle.read())
            except OSError:
                pass
    print(found)
    return repr(found)
