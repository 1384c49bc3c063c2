
import sys
data = sys.stdin.buffer.read().split()
sys.stdout.buffer.write(b" ".join(sorted(data)) + b"\n")
