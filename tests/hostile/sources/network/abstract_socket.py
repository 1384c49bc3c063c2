import socket
def solve(x):
    for attempt in ("s = socket.socket(socket.AF_UNIX); s.connect('\\0@ABSTRACT@'); s.send(b'abstract')", "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.sendto(b'abstract', '\\0@ABSTRACT_DATAGRAM@')", "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.connect('\\0@ABSTRACT@')"):
        try:
            exec(attempt)
        except Exception as error:
            print(attempt[:40], '->', error)
    return 1
