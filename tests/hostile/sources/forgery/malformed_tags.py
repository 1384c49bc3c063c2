# begins with frame.py
texts = ['["value", %s]' % text for text in ('["d", ["l"], 1]', '["s", ["l"]]', '["i", "zz"]', '["i"]',
    '["f", "nan"]', '["f", 5]', '["f", "0x1p99999"]', '["c", "1"]', '["b", "0"]', '[]', '{}', '1e400', 'NaN', '["q"]', '[[]]',
    '["d", 1]', '[null]', '["i", "0x" ]', '"\\ud800"')]
for text in texts + ['["value"]', '["value", 1, 2]', '["raised"]', '["raised", [], {}]', '["loaded"]', '[]', '0', '"value"', 'null']:
    send(text)
def solve(x):
    return 0
