# begins with raw.py
def solve(x):
    for attempt in ("os.chmod('@CANARY@/precious', 0o600)", "os.chmod('@CANARY@', 0o700)", "os.utime('@CANARY@/precious', (1, 1))", "os.chown('@CANARY@/precious', 65534, 65534)", "os.chown('@CANARY@/precious', os.getuid(), os.getgid())", "os.setxattr('@CANARY@/precious', 'user.mark', b'x')", "os.chmod('@CANARY@/inner', 0)", "os.utime('@CANARY@/inner', (1, 1))"):
        try:
            exec(attempt)
        except Exception as error:
            print(attempt[:40], '->', error)
    return 1
