import os
def solve(x):
    for process in ('@HOST_PID@', str(os.getppid())):
        try:
            text = open(f'/proc/{process}/cmdline').read()
            if 'harness' in text or 'pytest' in text:
                print('BREACH the command line of the host:', text[:60])
        except OSError:
            pass
    return 1
