"""Small tools for waiting on several things at once, and for not waiting for ever."""

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
"""Tasks that have ended: number, result, error."""


def start_thread(task: Callable[[], T], ended: Ended[T], index: int = 0) -> None:
    """Run a task in a thread that nobody waits for at exit; what came of it is put into the queue."""

    def run() -> None:
        try:
            ended.put((index, task(), None))
        except BaseException as problem:
            ended.put((index, None, problem))

    threading.Thread(target=run, daemon=True, name="reward").start()


def run_concurrently(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Results of all tasks, in order; the first error, in order, once all have ended.

    Daemon threads and a queue, not an executor: an executor's threads are joined at exit, and a reward function that
    never returns would keep the process from ending. A single task has a thread too: a signal is then raised here, where
    it ends the run, and not inside a reward function, where it would pass for its fault.
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
    """The task's result, or TimeoutError with the thread left behind."""
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
    """0..count-1 as nearly equal runs, none empty."""
    pieces = max(1, min(pieces, count))
    edges = [count * i // pieces for i in range(pieces + 1)]
    return [list(range(low, high)) for low, high in itertools.pairwise(edges)]


class LoopThread:
    """An event loop in a thread of its own, begun when it is first needed: what async functions hold on to stays theirs."""

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
    """A thread, or several, that take up tasks in the order in which they come. Nobody waits for it at exit."""

    def __init__(self, name: str, threads: int = 1) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        for _ in range(threads):
            threading.Thread(target=self._work, daemon=True, name=name).start()

    def submit(self, task: Callable[[], T]) -> Future[T]:
        """Begin the task once those before it have been taken up; its result or its problem is in what is given back."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(task())
            except BaseException as problem:
                future.set_exception(problem)

        self._tasks.put(run)
        return future

    def close(self) -> None:
        """What was begun is done to its end; then the threads end, one after the other."""
        self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()
        self._tasks.put(None)
