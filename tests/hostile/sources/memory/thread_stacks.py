import ctypes, threading, time
def solve(x):
    threading.stack_size(64 * 2 ** 20)
    def deep(level):
        area = ctypes.create_string_buffer(2 ** 20)
        return time.sleep(0.5) if level == 0 else deep(level - 1)
    for _ in range(60):
        try:
            threading.Thread(target=deep, args=(40,), daemon=True).start()
        except (RuntimeError, MemoryError):
            break
    time.sleep(0.6)
