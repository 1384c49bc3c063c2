# begins with raw.py
def solve(x):
    for _ in range(4):
        if os.fork() == 0:
            while True:
                pass
    time.sleep(20)
