import socket
def solve(x):
    for attempt in ("s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262); s.settimeout(0.5); s.connect(('127.0.0.1', @PORT@)); s.send(b'multi')", "s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132); s.settimeout(0.5); s.connect(('127.0.0.1', @PORT@))"):
        try:
            exec(attempt)
        except Exception as error:
            print(attempt[:40], '->', error)
    return 1
