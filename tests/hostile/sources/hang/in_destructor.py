import time
class Slow:
    def __del__(self):
        while True:
            time.sleep(1)
kept = Slow()
def solve(x):
    Slow()
    return 1
