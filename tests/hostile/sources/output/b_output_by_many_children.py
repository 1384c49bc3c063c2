# thirty children write to both streams after their parent has ended
import os, time
for _ in range(30):
    if os.fork() == 0:
        end = time.time() + 20
        while time.time() < end:
            try:
                os.write(1, b"x" * 65536)
                os.write(2, b"y" * 65536)
            except OSError:
                break
        os._exit(0)
print("parent done", flush=True)
os._exit(0)
