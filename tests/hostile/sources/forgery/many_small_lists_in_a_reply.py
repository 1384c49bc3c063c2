# begins with frame.py
body = '["value", ["l"' + ', ["l"]' * 590_000 + ']]'
def solve(x):
    send(body)
    import time
    time.sleep(60)
