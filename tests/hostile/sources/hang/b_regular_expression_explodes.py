# exponential backtracking inside the regular expression engine
import re
def solve(n):
    return bool(re.match(r"((a*)*)*b\1$", "a" * 60))
