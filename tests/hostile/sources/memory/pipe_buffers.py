import fcntl, os, time
def solve(x):
    held, kept, block = 0, [], b'x' * 2 ** 20
    try:
        for _ in range(4000):
            reader, writer = os.pipe()
            kept += [reader, writer]
            os.set_blocking(writer, False)
            try:
                fcntl.fcntl(writer, 1031, 2 ** 20)
            except OSError:
                pass
            held += os.write(writer, block)
    except OSError:
        pass
    if held > (@MEMORY_MB@ + 64) * 2 ** 20:
        print('BREACH', held >> 20, 'MB in pipes')
    return held
