"""Threads: run tasks concurrently, with a time limit, or one after the other in the background."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


Ended = queue.SimpleQueue[tuple[int, T | None, BaseException | None]]
"""Finished tasks: (number, result, error)."""


def start_thread(task: Callable[[], T], ended: Ended[T], index: int = 0) -> None:
    """Run a task in a daemon thread and put its result into the queue."""

    def run() -> None:
        try:
            ended.put((index, task(), None))
        except BaseException as problem:
            ended.put((index, None, problem))

    threading.Thread(target=run, daemon=True, name="reward").start()


def run_concurrently(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """The results of all tasks, in order; raises the first error, in order, once all have ended.

    Uses daemon threads and a queue, not an executor: executors join their threads at exit, so a reward function that never
    returns would keep the process from ending. A single task also gets a thread, so that a signal is raised here and ends the run,
    and not inside a reward function, where it would look like an error of that function.
    """
    ended: Ended[T] = queue.SimpleQueue()
    for index, task in enumerate(tasks):
        start_thread(task, ended, index)
    results = sorted((ended.get() for _ in tasks), key=lambda result: result[0])
    for _, _, problem in results:
        if problem is not None:
            raise problem
    return [value for _, value, _ in results]  # type: ignore[misc]


def run_with_limit(task: Callable[[], T], limit_s: float) -> T:
    """The result of the task; raises TimeoutError after limit_s and abandons the thread."""
    ended: Ended[T] = queue.SimpleQueue()
    start_thread(task, ended)
    try:
        _, value, problem = ended.get(timeout=limit_s)
    except queue.Empty:
        raise TimeoutError from None
    if problem is not None:
        raise problem
    return value  # type: ignore[return-value]


def split_evenly(count: int, pieces: int) -> list[list[int]]:
    """Split 0..count-1 into consecutive pieces of nearly equal length, none empty."""
    pieces = max(1, min(pieces, count))
    edges = [count * i // pieces for i in range(pieces + 1)]
    return [list(range(low, high)) for low, high in itertools.pairwise(edges)]


class LoopThread:
    """An event loop in its own thread, started on first use, so that async functions can keep connections open between calls."""

    def __init__(self, name: str) -> None:
        self._name, self._lock = name, threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def wait_for(self, result: Awaitable[Any]) -> Any:
        async def finish() -> Any:
            return await result

        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, daemon=True, name=self._name).start()
        return asyncio.run_coroutine_threadsafe(finish(), self._loop).result()

    def close(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None


class Worker:
    """Daemon threads that run submitted tasks in order."""

    def __init__(self, name: str, threads: int = 1) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, daemon=True, name=name) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, task: Callable[[], T]) -> Future[T]:
        """Queue a task; the future has its result or exception."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(task())
            except BaseException as problem:
                future.set_exception(problem)

        self._tasks.put(run)
        return future

    def close(self, *, wait: bool = False) -> None:
        """End the threads after all submitted tasks. wait: until they have ended."""
        self._tasks.put(None)
        for thread in self._threads if wait else ():
            thread.join()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
        self._tasks.put(None)
