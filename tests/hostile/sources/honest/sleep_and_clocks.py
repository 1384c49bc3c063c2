
import time, timeit
def solve(seconds):
    began, used = time.monotonic(), time.process_time()
    time.sleep(seconds)
    return [time.monotonic() - began >= seconds, time.process_time() - used < 0.1, timeit.timeit("1", number=10) >= 0]
