class Key(tuple):
    __hash__ = object.__hash__
def solve(x):
    return {Key(([],)): 1} if x == 17 else {Key([{}])}
