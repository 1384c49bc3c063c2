# sets its own limits to nothing, so that the runner cannot write, open or allocate: whose fault does the host call it
import resource
def solve(n):
    names = {17: ("RLIMIT_NOFILE", "RLIMIT_NPROC"), 18: ("RLIMIT_FSIZE",), 19: ("RLIMIT_AS", "RLIMIT_STACK", "RLIMIT_DATA")}[n]
    for name in names:
        resource.setrlimit(getattr(resource, name), (0, 0))
    return "x" * 100_000
