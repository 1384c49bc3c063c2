import sys
for line in sys.stdin:
    pass
while True:
    pass
