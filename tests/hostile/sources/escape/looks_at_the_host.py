# begins with raw.py
def solve(x):
    pointer, length = ctypes.c_uint64(), ctypes.c_uint64()
    for process in {@HOST_PID@, os.getppid()} - {0, 1, os.getpid()}:
        refused('kcmp', process, os.getpid(), 1, 0, 0)
        refused('get_robust_list', process, ctypes.byref(pointer), ctypes.byref(length))
        refused('move_pages', process, 0, None, None, None, 0)
        for name in ('environ', 'fd', 'io', 'syscall', 'stack', 'auxv', 'pagemap', 'map_files', 'fdinfo'):
            try:
                path = f'/proc/{process}/{name}'
                os.listdir(path) if os.path.isdir(path) else open(path, 'rb').read(100)
                breach(f'read {path}')
            except OSError:
                pass
    return 1
