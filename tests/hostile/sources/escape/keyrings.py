# begins with raw.py
def solve(x):
    refused('add_key', b'user', b'@MARKER@', b'x', 1, -4)
    refused('keyctl', 0, -3, 0)
    refused('keyctl', 1, None)
    refused('request_key', b'user', b'@MARKER@', None, -4)
    return 1
