# brings the loopback interface up by ioctl and netlink, adds a route, then connects
import fcntl, os, socket, struct
def solve(n):
    control = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for name in (b"lo", b"eth0"):
        try:
            fcntl.ioctl(control, 0x8914, struct.pack("16sH14s", name, 0x41, b""))
        except OSError as error:
            print(name, error)
    try:
        link = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
        link.send(struct.pack("=LHHLL", 32, 16, 5, 1, 0) + struct.pack("=BBHiII", 0, 0, 0, 1, 1, 1))
        print(link.recv(4096)[:40])
    except OSError as error:
        print(error)
    with socket.socket() as peer:
        peer.settimeout(1)
        peer.connect(("127.0.0.1", int("@PORT@")))
        peer.send(b"@MARKER@")
    return os.listdir("/sys/class/net")
