# an exception whose __str__ and __repr__ never return
class Slow(Exception):
    def __str__(self):
        while True:
            pass
    __repr__ = __str__
def solve(n):
    raise Slow()
