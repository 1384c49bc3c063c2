# begins with frame.py
def solve(x):
    send('["value", ' + '9' * 4_000_000 + ']')
    import time
    time.sleep(60)
