import socket
def solve(x):
    for attempt in ("socket.create_connection(('127.0.0.1', @PORT@), timeout=0.5).send(b'tcp')", "socket.create_connection(('localhost', @PORT@), timeout=0.5).send(b'tcp')", "socket.create_connection(('0.0.0.0', @PORT@), timeout=0.5).send(b'tcp')"):
        try:
            exec(attempt)
        except Exception as error:
            print(attempt[:40], '->', error)
    return 1
