import os, socket
def solve(x):
    for attempt in ("s = socket.socket(socket.AF_UNIX); s.connect('@UNIX_PATH@'); s.send(b'named')", "os.symlink('@UNIX_PATH@', 'door'); s = socket.socket(socket.AF_UNIX); s.connect('door'); s.send(b'named')", "os.chdir(os.path.dirname('@UNIX_PATH@')); s = socket.socket(socket.AF_UNIX); s.connect(os.path.basename('@UNIX_PATH@'))"):
        try:
            exec(attempt)
        except Exception as error:
            print(attempt[:40], '->', error)
    return 1
