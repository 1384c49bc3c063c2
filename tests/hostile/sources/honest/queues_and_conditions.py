
import queue, threading
def solve(n):
    todo, done = queue.Queue(4), queue.PriorityQueue()
    barrier, event, gate = threading.Barrier(3), threading.Event(), threading.Semaphore(2)
    def work():
        barrier.wait(2)
        while (item := todo.get()) is not None:
            with gate:
                done.put(-item)
        event.set()
    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for item in [*range(n), None, None, None]:
        todo.put(item)
    for worker in workers:
        worker.join()
    timer = threading.Timer(0.01, event.set)
    timer.start()
    timer.join()
    return [-done.get() for _ in range(n)]
