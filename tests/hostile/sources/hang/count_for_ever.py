import itertools
def solve(x):
    return sum(itertools.count())
