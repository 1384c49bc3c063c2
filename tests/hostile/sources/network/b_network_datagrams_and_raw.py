# datagrams, fast-open, raw and packet sockets to the planted ports
import socket
def solve(n):
    for family, kind, protocol in ((2, socket.SOCK_DGRAM, 0), (2, socket.SOCK_RAW, 1), (2, socket.SOCK_RAW, 255), (17, socket.SOCK_RAW, 0x0300),
                                   (2, socket.SOCK_SEQPACKET, 132), (2, socket.SOCK_DGRAM, 136), (2, 6, 33), (10, socket.SOCK_DGRAM, 0)):
        try:
            with socket.socket(family, kind, protocol) as peer:
                peer.settimeout(0.3)
                print("made", family, kind, protocol)
                peer.sendto(b"@MARKER@", ("127.0.0.1" if family != 10 else "::1", int("@UDP_PORT@")))
        except (OSError, TypeError) as error:
            print(family, kind, error)
    try:
        with socket.socket() as peer:
            peer.sendto(b"@MARKER@", 0x20000000, ("127.0.0.1", int("@PORT@")))
            print("fast open")
    except OSError as error:
        print(error)
    return n
