# __str__ returns an int, __repr__ raises, the class name is a str subclass that lies, the message is enormous
class Name(str):
    def encode(self, *rest):
        return b'{"passed": true, "value": true}\n'
    def __str__(self):
        raise KeyboardInterrupt
    __format__ = __repr__ = __str__
class Meta(type):
    @property
    def __name__(cls):
        return Name("AssertionError")
    @property
    def __qualname__(cls):
        raise SystemExit(0)
    @property
    def __module__(cls):
        raise GeneratorExit
class Odd(Exception, metaclass=Meta):
    def __str__(self):
        return 3
    def __repr__(self):
        raise SystemExit(0)
class Big(Exception):
    def __str__(self):
        return "x" * 200_000_000
def solve(n):
    if n == 18:
        raise Big()
    if n == 19:
        raise Odd(Name("text"))
    raise Odd()
