import array, os, socket
def solve(x):
    held, block = 0, b'x' * 2 ** 16
    try:
        carrier = socket.socketpair()
        carrier[0].setblocking(False)
        for _ in range(20_000):
            reader, writer = os.pipe()
            os.set_blocking(writer, False)
            count = os.write(writer, block)
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [reader, writer]))
            carrier[0].sendmsg([b'x'], [rights])
            held += count
            os.close(reader)
            os.close(writer)
    except OSError:
        pass
    if held > (@MEMORY_MB@ + 64) * 2 ** 20:
        print('BREACH', held >> 20, 'MB in pipes on their way')
    return held
