def solve(x):
    held = 0
    for number in range(40):
        try:
            with open(f'big{number}', 'wb', buffering=0) as file:
                for _ in range(30):
                    held += file.write(b'x' * 2 ** 20)
        except OSError:
            pass
        if held > (@FILES_MB@ + 64) * 2 ** 20:
            print('BREACH', held >> 20, 'MB in files', flush=True)
            break
    return held
