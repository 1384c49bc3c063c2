# begins with raw.py
def solve(x):
    import stat
    for name, major, minor in (('disk', 254, 0), ('disk2', 8, 0), ('memory', 1, 1), ('kernel', 1, 11), ('fuse', 10, 229)):
        for kind in (stat.S_IFBLK, stat.S_IFCHR):
            try:
                os.mknod(name, kind | 0o666, os.makedev(major, minor))
                breach(f'made a device {name}')
            except OSError:
                pass
    return 1
