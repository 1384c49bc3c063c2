import os
def solve(x):
    held, kept = 0, []
    for number in range(40):
        try:
            file = open(f'gone{number}', 'wb', buffering=0)
            os.unlink(f'gone{number}')
            kept.append(file)
            for _ in range(30):
                held += file.write(b'x' * 2 ** 20)
        except OSError:
            pass
        if held > (@FILES_MB@ + 64) * 2 ** 20:
            print('BREACH', held >> 20, 'MB in deleted files', flush=True)
            break
    return held
