import os
def solve(x):
    os.makedirs('a/b/c')
    open('a/b/c/file', 'w').close()
    os.mkdir('odd\udcff\n name')
    os.symlink('@CANARY@', 'link')
    os.symlink('/', 'root')
    os.mkfifo('fifo')
    os.chmod('a/b/c/file', 0)
    os.chmod('a/b', 0)
    os.chmod('a', 0)
    os.chmod('.', 0)
    return 1
