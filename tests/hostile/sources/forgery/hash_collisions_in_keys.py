# begins with frame.py
items = ', '.join('["i", "%s"], 1' % hex(place * (2 ** 61 - 1)) for place in range(1, 20_001))
def solve(x):
    send('["value", ["d", ' + items + ']]')
    import time
    time.sleep(60)
