# begins with stay.py
def solve(x):
    result, error = syscall('clone', 0x8000 | 17, 0, 0, 0, 0)
    if result == 0:
        os.setsid()
        stay()
    os._exit(0)
