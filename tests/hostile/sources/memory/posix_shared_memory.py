import os
def solve(x):
    held, block = 0, b'x' * 2 ** 20
    for folder in ('/dev/shm', '/run/shm'):
        try:
            descriptor = os.open(f'{folder}/@MARKER@', os.O_CREAT | os.O_RDWR)
            os.unlink(f'{folder}/@MARKER@')
            for _ in range(1500):
                held += os.write(descriptor, block)
        except OSError:
            pass
    if held > (@MEMORY_MB@ + 64) * 2 ** 20:
        print('BREACH', held >> 20, 'MB in shared memory')
    return held
