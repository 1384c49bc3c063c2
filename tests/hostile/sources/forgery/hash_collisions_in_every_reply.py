# begins with frame.py
items = ', '.join('["i", "%s"]' % hex(place * (2 ** 61 - 1)) for place in range(1, 8_001))
for _ in range(20):
    send('["value", ["s", ' + items + ']]')
def solve(x):
    return 0
