# begins with frames.py
import threading
def forever():
    while True:
        spray(True, 3)
threading.Thread(target=forever, daemon=True).start()
def solve(x):
    import time
    time.sleep(0.2)
    return 'wrong'
