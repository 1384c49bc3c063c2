# begins with raw.py
def solve(x):
    os.mkdir('cell')
    result, error = refused('chroot', b'cell')
    for _ in range(60):
        os.chdir('..')
    syscall('chroot', b'.')
    open('@CANARY@/chroot', 'w').close()
    return 1
