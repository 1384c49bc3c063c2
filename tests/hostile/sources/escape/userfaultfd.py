# begins with raw.py
def solve(x):
    refused('userfaultfd', 0)
    refused('userfaultfd', 1)
    return 1
