class Meta(type):
    def __subclasscheck__(cls, other):
        raise KeyboardInterrupt
class Odd(BaseException, metaclass=Meta):
    def __str__(self):
        raise Odd
def solve(x):
    raise Odd from Odd()
