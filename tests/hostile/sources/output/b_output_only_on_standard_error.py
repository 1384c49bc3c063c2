# floods standard error while standard output stays silent: a host that reads one stream after the other locks up
import sys
for _ in range(8_000):
    sys.stderr.write("e" * 65536)
print("6174")
