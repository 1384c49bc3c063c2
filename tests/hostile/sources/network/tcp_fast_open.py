import socket
def solve(x):
    for attempt in ("s = socket.socket(); s.settimeout(0.5); s.sendto(b'fast', 0x20000000, ('127.0.0.1', @PORT@))", "s = socket.socket(); s.setsockopt(6, 30, 1); s.settimeout(0.5); s.connect(('127.0.0.1', @PORT@)); s.send(b'fast')"):
        try:
            exec(attempt)
        except Exception as error:
            print(attempt[:40], '->', error)
    return 1
