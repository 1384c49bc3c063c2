import sys
def solve(x):
    return input() + sys.stdin.read()
