import multiprocessing, time
def work(x):
    time.sleep(60)
def solve(x):
    multiprocessing.set_start_method('fork', force=True)
    workers = [multiprocessing.Process(target=work, args=(1,)) for _ in range(8)]
    for worker in workers:
        worker.start()
    return 1
