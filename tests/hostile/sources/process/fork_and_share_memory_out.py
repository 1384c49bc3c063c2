# begins with raw.py
def solve(x):
    for _ in range(6):
        if os.fork() == 0:
            kept = bytearray(b'x') * (300 * 2 ** 20)
            time.sleep(20)
            os._exit(0)
    time.sleep(20)
