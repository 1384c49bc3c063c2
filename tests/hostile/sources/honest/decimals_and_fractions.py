
from decimal import Decimal, getcontext
from fractions import Fraction
import math, statistics, cmath
def solve():
    getcontext().prec = 30
    return [str(Decimal(2).sqrt()), str(sum(Fraction(1, k) for k in range(1, 11))), math.comb(50, 25),
            statistics.median([3, 1, 2]), round(abs(cmath.exp(1j)), 12), 0.1 + 0.2]
