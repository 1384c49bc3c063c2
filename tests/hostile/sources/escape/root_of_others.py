import os
def solve(x):
    for process in {1, @HOST_PID@, os.getppid()} - {os.getpid()}:
        for place in ('root', 'cwd'):
            base = f'/proc/{process}/{place}'
            try:
                open(base + '@CANARY@/through_proc', 'w').close()
            except OSError:
                pass
            try:
                print(open(base + '@SECRET_FILE@').read())
            except OSError:
                pass
    return 1
