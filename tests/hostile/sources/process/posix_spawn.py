import os
def solve(x):
    return os.posix_spawn('/bin/sleep', ['@MARKER@', '60'], {'MARKER': '@MARKER@'}, setpgroup=0)
