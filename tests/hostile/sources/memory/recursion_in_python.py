import sys
sys.setrecursionlimit(10 ** 9)
def solve(x):
    return solve(x) + 1
