import threading, time
def solve(x):
    started = 0
    try:
        for _ in range(5000):
            threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
            started += 1
    except (RuntimeError, MemoryError):
        pass
    if started > 1000:
        print('BREACH', started, 'threads')
    return started
