class Meta(type):
    @property
    def __name__(cls):
        return 5
class Quiet(Exception, metaclass=Meta):
    pass
def solve(x):
    if x == 17:
        raise Quiet
    raise type('\ud800' * 3, (BaseException,), {})
