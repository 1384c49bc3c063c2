# four thousand threads with tiny stacks, some made directly with clone
import _thread, threading, time
threading.stack_size(32768)
def wait():
    time.sleep(30)
def solve(n):
    made = 0
    for _ in range(4000):
        try:
            _thread.start_new_thread(wait, ())
            made += 1
        except RuntimeError:
            break
    time.sleep(1)
    return made
