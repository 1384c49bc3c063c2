import sys
sys.setrecursionlimit(10 ** 9)
def solve(x):
    deep = []
    for _ in range(3_000_000):
        deep = [deep]
    return len(repr(deep))
