import socket
def solve(x):
    for attempt in ("socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'udp', ('127.0.0.1', @UDP_PORT@))", "socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 136).sendto(b'udp', ('127.0.0.1', @UDP_PORT@))"):
        try:
            exec(attempt)
        except Exception as error:
            print(attempt[:40], '->', error)
    return 1
