import glob, os
def solve(x):
    for folder in ['/sys/fs/cgroup'] + glob.glob('/sys/fs/cgroup/*') + ['/proc/self/cgroup']:
        try:
            os.mkdir(os.path.join(folder, '@MARKER@'))
            print('BREACH made a control group in', folder)
        except OSError:
            pass
    return 1
