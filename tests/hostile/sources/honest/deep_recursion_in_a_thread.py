
import sys, threading
sys.setrecursionlimit(100_000)
threading.stack_size(64 * 1024 * 1024)
def depth(n):
    return 0 if n == 0 else 1 + depth(n - 1)
def solve(n):
    found = []
    worker = threading.Thread(target=lambda: found.append(depth(n)))
    worker.start()
    worker.join()
    return found[0]
