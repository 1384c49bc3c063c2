
import sys
from functools import lru_cache
sys.setrecursionlimit(20_000)
@lru_cache(maxsize=None)
def steps(n):
    return 0 if n == 0 else 1 + steps(n - 1)
def solve(n):
    return steps(n)
