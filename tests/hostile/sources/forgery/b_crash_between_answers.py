# answers once, then reads address zero: answers already given and answers never given must not be mixed up
import ctypes
def solve(n):
    if n > 17:
        ctypes.string_at(0)
    return True
