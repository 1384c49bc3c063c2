# recursion through C functions with the recursion limit lifted: a crash instead of an exception
import sys, threading
sys.setrecursionlimit(10**9)
threading.stack_size(256 << 20)
class Loop:
    def __repr__(self):
        return repr([self])
    def __getattr__(self, name):
        return getattr(self, name + "x")
def solve(n):
    worker = threading.Thread(target=lambda: repr(Loop()))
    worker.start()
    worker.join()
    return repr(Loop())
