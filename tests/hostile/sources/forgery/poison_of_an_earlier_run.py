import os, sys, tempfile
def solve(x):
    try:
        import poisonedbefore
        print('BREACH imported a file of another run')
    except ImportError:
        pass
    for folder in (os.getcwd(), tempfile.gettempdir(), '/tmp', '/var/tmp', '/dev/shm', os.path.expanduser('~')):
        if os.path.exists(os.path.join(folder, 'poisonedbefore.py')):
            print('BREACH found a file of another run in', folder)
    return sorted(os.listdir('.'))
