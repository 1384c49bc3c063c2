import re
def solve(x):
    return bool(re.match('(a+)+$', 'a' * 60 + 'b'))
