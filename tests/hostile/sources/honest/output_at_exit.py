
import atexit, threading
atexit.register(print, "last")
threading.Timer(0.05, print, ("from a thread",)).start()
print("first")
