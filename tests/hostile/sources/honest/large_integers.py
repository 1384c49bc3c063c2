
import math
def solve(n):
    value = math.factorial(n)
    return [value % 1_000_000_007, len(str(value)), pow(3, 10 ** 18, 10 ** 9 + 7), 2 ** 4000]
