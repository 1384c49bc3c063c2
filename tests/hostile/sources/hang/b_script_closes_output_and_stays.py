# closes its output, so that a host waiting for end-of-file thinks it is done, and never ends
import os, time
os.write(1, b"6174\n")
os.closerange(0, 64)
while True:
    time.sleep(1)
