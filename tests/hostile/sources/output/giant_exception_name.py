def solve(x):
    raise type('E' * 20_000_000, (Exception,), {})
