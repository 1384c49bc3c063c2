# an integer with more decimal digits than int() accepts by default: the host's own parser would raise
import sys
sys.set_int_max_str_digits(0)
def solve(n):
    return {"a": 10**5000, "b": -(10**4300), 10**4400: 1}
