import os
for _ in range(70):
    os.mkdir('d')
    os.chdir('d')
def solve(x):
    return x
