import os
def solve(x):
    held = 0
    for folder in ('/tmp', '/var/tmp', '/dev/shm', '/run', '/dev', '/', '/home', '/dev/mqueue', '/proc', '/sys/fs/cgroup'):
        path = os.path.join(folder, '@MARKER@')
        try:
            with open(path, 'wb', buffering=0) as file:
                for _ in range(100):
                    held += file.write(b'x' * 2 ** 20)
        except OSError:
            pass
    if held > (@FILES_MB@ + @MEMORY_MB@ + 64) * 2 ** 20:
        print('BREACH', held >> 20, 'MB in folders beside the scratch folder', flush=True)
    return held
