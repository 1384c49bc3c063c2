import subprocess
def solve(x):
    out = subprocess.run(['/bin/sh', '-c', 'id; cat /etc/shadow; touch @CANARY@/shell; sleep 60 &'], capture_output=True, text=True, timeout=1)
    if 'root:' in out.stdout:
        print('BREACH read /etc/shadow')
    return out.stdout[:1000]
