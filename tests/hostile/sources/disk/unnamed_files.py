import os
def solve(x):
    held, kept = 0, []
    for number in range(40):
        try:
            descriptor = os.open('.', os.O_TMPFILE | os.O_RDWR)
            kept.append(descriptor)
            for _ in range(30):
                held += os.write(descriptor, b'x' * 2 ** 20)
        except OSError:
            pass
        if held > (@FILES_MB@ + 64) * 2 ** 20:
            print('BREACH', held >> 20, 'MB in files without a name', flush=True)
            break
    return held
