import sys
def solve(x):
    while True:
        sys.stderr.write('x' * 65536)
