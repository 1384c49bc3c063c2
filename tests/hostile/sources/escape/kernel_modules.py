# begins with raw.py
def solve(x):
    for name, wrong in (('init_module', (0, 0, b'')), ('finit_module', (-1, b'', 0)), ('delete_module', (b'@MARKER@', 0)),
                        ('kexec_load', (0, 0, 0, 0xFFFF)), ('kexec_file_load', (-1, -1, 0, b'', 0xFFFF)), ('reboot', (0, 0, 0, 0)),
                        ('acct', (b'/no/such/file',)), ('swapon', (b'/no/such/file', 0)), ('settimeofday', (None, b'\xff' * 8))):
        result, error = syscall(name, *wrong)
        if result >= 0 or error not in (errno.EPERM, errno.ENOSYS, errno.EACCES):
            breach(f'{name} was not refused at the door: errno {error}')
    return 1
