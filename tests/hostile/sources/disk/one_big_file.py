def solve(x):
    held = 0
    with open('big', 'wb', buffering=0) as file:
        try:
            for _ in range(1024):
                held += file.write(b'x' * 2 ** 20)
        finally:
            if held > (@FILES_MB@ + 16) * 2 ** 20:
                print('BREACH', held >> 20, 'MB in a file', flush=True)
    return held
