import os
def solve(x):
    made = 0
    try:
        for _ in range(20_000):
            os.mkdir('d' * 200)
            os.chdir('d' * 200)
            made += 1
    finally:
        print('depth', made, flush=True)
    return made
