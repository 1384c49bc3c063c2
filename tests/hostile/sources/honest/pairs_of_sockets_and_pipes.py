
import os, select, selectors, socket, threading
def solve(text):
    left, right = socket.socketpair()
    worker = threading.Thread(target=lambda: right.sendall(right.recv(100).upper()))
    worker.start()
    left.sendall(text.encode())
    ready, _, _ = select.select([left], [], [], 2)
    answer = left.recv(100)
    worker.join()
    reading, writing = os.pipe()
    os.write(writing, b"piped")
    with selectors.DefaultSelector() as selector:
        selector.register(reading, selectors.EVENT_READ)
        events = len(selector.select(1))
    return [answer, len(ready), os.read(reading, 10), events]
