# begins with raw.py
def solve(x):
    for attempt in ("open('@CANARY@/created', 'w').close()", "open('@CANARY@/precious', 'a').write('x')", "os.truncate('@CANARY@/precious', 0)", "os.unlink('@CANARY@/precious')", "os.rename('@CANARY@/precious', '@CANARY@/moved')", "os.rmdir('@CANARY@/inner')", "os.mkdir('@CANARY@/made')", "os.mkfifo('@CANARY@/fifo')", "os.symlink('x', '@CANARY@/symlink')", "os.link('@CANARY@/precious', '@CANARY@/link')", "os.mknod('@CANARY@/node')", "import socket; socket.socket(socket.AF_UNIX).bind('@CANARY@/bound')"):
        try:
            exec(attempt)
        except Exception as error:
            print(attempt[:40], '->', error)
    return 1
