# begins with raw.py
def solve(x):
    for path in ('/', '/usr', '/etc', '/etc/passwd', sys.prefix, os.path.dirname(os.__file__), sys.executable, '@TRAINER@', '/tmp'):
        if os.path.realpath('.').startswith(path.rstrip('/') + '/') or os.path.realpath('.') == path:
            continue  # the jail's own
        try:
            state = os.stat(path)
            # To set what is set already is harmless, and a change that is really made moves the time of the last one.
            os.chmod(path, state.st_mode & 0o7777)
            if os.stat(path).st_ctime_ns != state.st_ctime_ns:
                breach(f'chmod of {path}')
        except OSError:
            pass
    return 1
