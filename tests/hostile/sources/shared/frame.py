
import os
def send(text):
    body = text.encode()
    data = len(body).to_bytes(4, "big") + body
    for descriptor in range(3, 64):
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(descriptor, view):]
        except OSError:
            pass
