# begins with stay.py
def solve(x):
    for change in (os.setsid, lambda: os.setpgid(0, 0)):
        try:
            change()
        except OSError:
            pass
    stay()
