# exceptions chained and grouped twenty thousand deep: printing the traceback overflows the stack
import sys
sys.setrecursionlimit(10**6)
def solve(n):
    error = ValueError("seed")
    for i in range(20_000):
        if i % 2:
            error = ExceptionGroup("g" * 10, [error])
        else:
            outer = KeyError(i)
            outer.__cause__ = error
            outer.__context__ = error
            error = outer
    raise error
