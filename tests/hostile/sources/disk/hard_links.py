import os
def solve(x):
    open('one', 'w').close()
    for number in range(50_000):
        os.link('one', f'{number:0>200}')
    for path in ('@CANARY@/precious', '@SECRET_FILE@', '/etc/passwd'):
        try:
            os.link(path, 'taken')
            open('taken', 'a').write('x')
        except OSError:
            pass
    return 1
