import time
def solve(x):
    while True:
        print('.', end='', flush=True)
        time.sleep(0.02)
