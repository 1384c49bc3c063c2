# begins with stay.py
def solve(x):
    libc.prctl(1, 0, 0, 0, 0)
    libc.prctl(36, 1, 0, 0, 0)
    libc.prctl(4, 1, 0, 0, 0)
    stay()
