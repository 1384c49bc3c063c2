
import threading
def solve(n):
    total, lock = [0], threading.Lock()
    def work(k):
        with lock:
            total[0] += k
    workers = [threading.Thread(target=work, args=(k,)) for k in range(n)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return total[0]
