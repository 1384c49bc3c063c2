import socket
def solve(x):
    held, kept, block = 0, [], b'x' * 2 ** 20
    try:
        for _ in range(4000):
            pair = socket.socketpair()
            kept.append(pair)
            pair[0].setblocking(False)
            pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 ** 24)
            try:
                while True:
                    held += pair[0].send(block)
            except BlockingIOError:
                pass
    except OSError:
        pass
    if held > (@MEMORY_MB@ + 64) * 2 ** 20:
        print('BREACH', held >> 20, 'MB in sockets')
    return held
