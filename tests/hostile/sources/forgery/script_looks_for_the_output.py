import gc, glob, os, sys
for path in glob.glob('/proc/self/fd/*') + glob.glob('./*') + glob.glob('../*') + glob.glob('/tmp/*'):
    try:
        if os.path.isfile(path):
            print(open(path, errors='replace').read(2000))
    except OSError:
        pass
print(sys.argv, dict(os.environ))
