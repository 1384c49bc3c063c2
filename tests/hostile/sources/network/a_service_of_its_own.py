import socket, time
def solve(x):
    kept = []
    for family, address in ((socket.AF_INET, ('127.0.0.1', 0)), (socket.AF_INET, ('0.0.0.0', 0)), (socket.AF_INET6, ('::', 0))):
        try:
            s = socket.socket(family)
            s.bind(address)
            s.listen()
            kept.append(s.getsockname()[1])
        except OSError:
            pass
    try:
        s = socket.socket(socket.AF_UNIX)
        s.bind('\0@MARKER@')
        s.listen()
        client = socket.socket(socket.AF_UNIX)
    except OSError:
        pass
    time.sleep(0.2)
    return 1
