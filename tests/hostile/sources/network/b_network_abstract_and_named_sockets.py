# unix sockets: the abstract name, the path, the path through a link, through /proc, and as datagram
import os, socket, tempfile
def solve(n):
    link = tempfile.mkdtemp(prefix="cohort-canary-") + "/s"
    os.symlink("@UNIX_PATH@", link)
    for address in ("\0@ABSTRACT@", "@UNIX_PATH@", link, "/proc/@HOST_PID@/root@UNIX_PATH@", "/proc/1/root@UNIX_PATH@"):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
            try:
                with socket.socket(socket.AF_UNIX, kind) as peer:
                    peer.settimeout(0.5)
                    peer.connect(address)
                    peer.send(b"@MARKER@")
                    print("ESCAPED", address)
            except OSError as error:
                print(repr(address), error)
    return n
