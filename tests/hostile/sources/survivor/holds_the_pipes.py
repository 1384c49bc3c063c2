# begins with stay.py
def solve(x):
    if os.fork() == 0:
        os.setsid()
        stay()
    os._exit(0)
