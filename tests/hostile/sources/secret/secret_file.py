import os
def solve(x):
    for attempt in ("print(open('@SECRET_FILE@').read())", "print(os.read(os.open('@SECRET_FILE@', os.O_RDONLY), 1000))", "print(open('/proc/self/root@SECRET_FILE@').read())", "print(os.listdir(os.path.dirname('@SECRET_FILE@')))", "import mmap; f = open('@SECRET_FILE@'); print(mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)[:100])", "import linecache; print(linecache.getlines('@SECRET_FILE@'))", "exec(compile(open('@SECRET_FILE@').read(), '@SECRET_FILE@', 'exec'))"):
        try:
            exec(attempt)
        except Exception as error:
            print(attempt[:40], '->', error)
    return 1
