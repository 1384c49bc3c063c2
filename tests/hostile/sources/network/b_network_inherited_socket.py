# uses sockets that are already open: sends, asks for their peers, and disconnects and reconnects them to the planted port
import os, socket
def solve(n):
    for fd in range(0, 256):
        try:
            peer = socket.socket(fileno=os.dup(fd))
        except OSError:
            continue
        try:
            print(fd, peer.family, peer.type, peer.getsockname(), peer.getpeername(), peer.getsockopt(1, 17, 12))
        except OSError as error:
            print(fd, error)
        if peer.family in (socket.AF_INET, socket.AF_INET6):
            try:
                peer.connect(("127.0.0.1", int("@PORT@")))
                peer.send(b"@MARKER@")
                print("ESCAPED")
            except OSError as error:
                print(error)
    return n
