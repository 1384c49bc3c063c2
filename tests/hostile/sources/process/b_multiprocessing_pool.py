# a pool of spawned workers that each import this file again, in a manager with a server
import concurrent.futures, multiprocessing
def work(n):
    with multiprocessing.get_context("fork").Pool(16) as pool:
        return pool.map(abs, range(1000))
def solve(n):
    with concurrent.futures.ProcessPoolExecutor(64) as pool:
        return sum(len(x) for x in pool.map(work, range(64)))
