
import sys
sys.setrecursionlimit(50_000)
def depth(n):
    return 0 if n == 0 else 1 + depth(n - 1)
def solve(n):
    return depth(n)
