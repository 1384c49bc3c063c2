# begins with raw.py
def solve(x):
    held = 0
    block = b'x' * 2 ** 20
    for number in range(64):
        descriptor, error = syscall('memfd_create', b'm%d' % number, 0)
        if descriptor < 0:
            break
        try:
            for _ in range(48):
                held += os.write(descriptor, block)
        except OSError:
            pass
        if held > (@MEMORY_MB@ + 64) * 2 ** 20:
            breach(f'{held >> 20} MB in files of memory')
            break
    time.sleep(0.2)
    return held
