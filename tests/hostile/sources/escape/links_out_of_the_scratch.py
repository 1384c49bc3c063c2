import os
def solve(x):
    for attempt in ("os.symlink('@CANARY@', 'way'); open('way/by_link', 'w').close()", "os.symlink('@CANARY@/precious', 'file'); open('file', 'a').write('x')", "os.symlink('@SECRET_FILE@', 'secret'); print(open('secret').read())", "os.symlink('/proc/self/root@CANARY@', 'loop'); open('loop/by_loop', 'w').close()", "os.rename('@CANARY@/precious', 'precious')", "os.rename('way', '@CANARY@/way')", "os.link('@CANARY@/precious', 'mine'); open('mine', 'a').write('x')", "open('../' * 30 + '@CANARY@/by_dots', 'w').close()", "os.open('by_path', os.O_CREAT | os.O_WRONLY, dir_fd=os.open('@CANARY@', os.O_PATH))", "os.chdir('@CANARY@'); open('by_cwd', 'w').close()"):
        try:
            exec(attempt)
        except Exception as error:
            print(attempt[:40], '->', error)
    return 1
