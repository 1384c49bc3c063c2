# begins with stay.py
def solve(x):
    for _ in range(9):
        try:
            os.fork()
        except OSError:
            pass
    time.sleep(20)
