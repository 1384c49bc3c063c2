# an endless loop that never comes back to the interpreter
import collections, itertools
def solve(n):
    collections.deque(itertools.repeat(None), maxlen=0)
