# begins with stay.py
def solve(x):
    for name in ('fork', 'vfork'):
        result, error = syscall(name)
        if result == 0:
            stay()
    return 1
