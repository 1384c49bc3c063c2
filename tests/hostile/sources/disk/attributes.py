import os
def solve(x):
    open('one', 'w').close()
    for number in range(2000):
        try:
            os.setxattr('one', f'user.{number}', b'x' * 3000)
            os.setxattr('@CANARY@/precious', f'user.{number}', b'x')
        except OSError:
            pass
    return 1
