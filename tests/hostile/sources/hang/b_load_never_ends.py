# never gets past loading, and swallows the interrupts that should end it
while True:
    try:
        while True:
            pass
    except BaseException:
        continue
def solve(n):
    return 1
