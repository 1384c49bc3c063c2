# connects to the planted port under every spelling of the local machine
import socket
def solve(n):
    port, made = int("@PORT@"), []
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET, "127.1"), (socket.AF_INET, "127.0.0.2"),
                         (socket.AF_INET6, "::1"), (socket.AF_INET6, "::ffff:127.0.0.1"), (socket.AF_INET, "localhost")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as peer:
                peer.settimeout(0.5)
                peer.connect((host, port))
                peer.send(b"@MARKER@")
                made.append(host)
        except OSError as error:
            print(host, error)
    return made
