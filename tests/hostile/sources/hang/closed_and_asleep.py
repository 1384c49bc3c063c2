import os, time
def solve(x):
    os.closerange(0, 4096)
    time.sleep(3600)
