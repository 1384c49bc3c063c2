import socket
def solve(x):
    for attempt in ("s = socket.socket(socket.AF_INET6); s.settimeout(0.5); s.connect(('::1', @PORT@)); s.send(b'six')", "s = socket.socket(socket.AF_INET6); s.settimeout(0.5); s.connect(('::ffff:127.0.0.1', @PORT@)); s.send(b'six')"):
        try:
            exec(attempt)
        except Exception as error:
            print(attempt[:40], '->', error)
    return 1
