import os
def solve(x):
    os.abort()
