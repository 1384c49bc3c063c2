# a generator, an iterator and a coroutine where a value should be
import itertools
def solve(n):
    if n == 17:
        return itertools.count()
    if n == 18:
        async def never():
            while True:
                pass
        return never()
    def endless():
        while True:
            yield endless()
    return endless()
