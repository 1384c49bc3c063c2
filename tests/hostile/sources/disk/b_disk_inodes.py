# two hundred thousand empty files, names of 250 bytes
import os, tempfile
def solve(n):
    folder = tempfile.gettempdir()
    made = 0
    try:
        for i in range(200_000):
            os.close(os.open(f"{folder}/cohort-canary-{i:0235d}", os.O_CREAT | os.O_WRONLY))
            made += 1
    except OSError as error:
        print(error)
    return made
