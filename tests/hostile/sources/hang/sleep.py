import time
def solve(x):
    time.sleep(3600)
