# begins with raw.py
def solve(x):
    os.makedirs('here', exist_ok=True)
    refused('mount', b'none', b'here', b'tmpfs', 0, None)
    refused('mount', b'/', b'here', None, 4096, None)
    refused('mount', b'none', b'here', b'proc', 0, None)
    refused('mount', b'none', b'/', None, 32 | 4096, None)
    refused('mount', b'none', b'@CANARY@', b'tmpfs', 0, None)
    refused('fsopen', b'tmpfs', 0)
    refused('open_tree', -100, b'/', 1)
    refused('umount2', b'here', 2)
    return 1
