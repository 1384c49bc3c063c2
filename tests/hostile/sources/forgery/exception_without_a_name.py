def solve(x):
    raise type('', (Exception,), {})('nothing')
