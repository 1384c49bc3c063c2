# the fault handler's watchdog thread is C code that writes tracebacks for ever, outside the interpreter lock
import faulthandler, os, threading, time
def deep(level):
    if level:
        return deep(level - 1)
    time.sleep(600)
def solve(n):
    for fd in (2, 1):
        faulthandler.dump_traceback_later(0.0001, repeat=True, file=fd)
    for _ in range(40):
        threading.Thread(target=deep, args=(90,), daemon=True).start()
    deep(90)
