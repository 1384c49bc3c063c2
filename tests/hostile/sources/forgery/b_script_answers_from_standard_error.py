# duplicates standard output onto standard error and back, writes to standard input, closes all, exits 0
import os
os.dup2(2, 9)
os.dup2(1, 2)
os.dup2(9, 1)
try:
    os.write(0, b"6174 8128 495\n")
except OSError:
    pass
os.write(1, b"6174 8128 495\n")
os.closerange(0, 256)
os._exit(0)
