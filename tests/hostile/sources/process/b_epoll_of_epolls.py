# epoll sets nested in one another so that one wakeup walks all of them
import os, select
def solve(n):
    layers = [[select.epoll() for _ in range(20)] for _ in range(5)]
    reader, writer = os.pipe()
    for epoll in layers[0]:
        epoll.register(reader, select.EPOLLIN)
    for below, above in zip(layers, layers[1:]):
        for upper in above:
            for lower in below:
                try:
                    upper.register(lower.fileno(), select.EPOLLIN)
                except OSError:
                    pass
    os.write(writer, b"x")
    while True:
        layers[-1][0].poll(0.01)
