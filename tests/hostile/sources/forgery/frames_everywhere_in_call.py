# begins with frames.py
def solve(x):
    spray(True, 3)
    import time
    time.sleep(60)
