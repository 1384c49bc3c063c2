import os, sys
def solve(x):
    folders = set(sys.path)
    for name in ('cohort', 'cohort_verify', 'cohort_verify.math', 'cohort_verify.sandbox'):
        try:
            folders.update(__import__(name, fromlist=['x']).__path__)
        except BaseException:
            pass
    folders.update(('@PROJECT@/src/cohort_verify', '@PROJECT@/src/cohort', '@PROJECT@/src'))
    for folder in folders:
        if not folder.startswith('/'):
            continue
        for attempt in (
            lambda: open(folder + '/@MARKER@.py', 'w').close(),
            lambda: open(folder + '/__init__.py', 'a').close(),
            lambda: os.truncate(folder + '/__init__.py', 0),
            lambda: os.rename(folder + '/__init__.py', folder + '/@MARKER@'),
            lambda: os.unlink(folder + '/__init__.py'),
            lambda: os.mkdir(folder + '/__pycache__'),
            lambda: os.symlink('/etc/passwd', folder + '/@MARKER@'),
            lambda: os.rename(folder, folder + '@MARKER@'),
            lambda: os.link(folder + '/__init__.py', os.getcwd() + '/linked'),
        ):
            try:
                attempt()
                print('BREACH changed', folder)
            except OSError:
                pass
    return 1
