import os
def solve(x):
    for _ in range(4000):
        os.write(1, bytes(range(256)) * 4)
        os.write(2, b'\xff\xfe\x00\x1b[2J')
    return b'\xff' * 1000
