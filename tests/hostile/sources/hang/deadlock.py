import threading
def solve(x):
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
