# closes its standard input at once: the host's write breaks with EPIPE and may be taken for a failure of the machinery
import os, time
os.close(0)
time.sleep(0.3)
print(6174)
