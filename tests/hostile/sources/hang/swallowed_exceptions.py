def solve(x):
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
