import os
def solve(x):
    for process in ('self', '@HOST_PID@', str(os.getppid())):
        try:
            before = int(open(f'/proc/{process}/oom_score_adj').read())
            for value in (-1000, before - 1):
                with open(f'/proc/{process}/oom_score_adj', 'w') as file:
                    file.write(str(value))
                print('BREACH lowered the score of', process)
        except (OSError, ValueError):
            pass
    return 1
