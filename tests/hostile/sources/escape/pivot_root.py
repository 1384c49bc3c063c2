# begins with raw.py
def solve(x):
    os.makedirs('new/old')
    refused('pivot_root', b'new', b'new/old')
    refused('pivot_root', b'.', b'.')
    return 1
