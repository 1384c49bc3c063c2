"""Small tools for waiting on several things at once, and for not waiting for ever."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def concurrently(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Results of all tasks, in order; the first error, in order, once all have ended.

    Daemon threads and a queue, not an executor: an executor's threads are joined at exit, and a reward function that
    never returns would keep the process from ending. A single task has a thread too: a signal is then raised here, where
    it ends the run, and not inside a reward function, where it would pass for its fault.
    """
    ended: queue.SimpleQueue[tuple[int, T | None, BaseException | None]] = queue.SimpleQueue()

    def run(index: int, task: Callable[[], T]) -> None:
        try:
            ended.put((index, task(), None))
        except BaseException as problem:
            ended.put((index, None, problem))

    for index, task in enumerate(tasks):
        threading.Thread(target=run, args=(index, task), daemon=True, name="reward").start()
    results = sorted((ended.get() for _ in tasks), key=lambda result: result[0])
    for _, _, problem in results:
        if problem is not None:
            raise problem
    return [value for _, value, _ in results]  # type: ignore[misc]


def with_limit(task: Callable[[], T], limit_s: float) -> T:
    """The task's result, or TimeoutError with the thread left behind."""
    ended: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            ended.put((task(), None))
        except BaseException as problem:
            ended.put((None, problem))

    threading.Thread(target=run, daemon=True, name="reward function").start()
    with contextlib.suppress(queue.Empty):
        value, problem = ended.get(timeout=limit_s)
        if problem is not None:
            raise problem
        return value  # type: ignore[return-value]
    raise TimeoutError


def split(count: int, pieces: int) -> list[list[int]]:
    """0..count-1 as nearly equal runs, none empty."""
    pieces = max(1, min(pieces, count))
    edges = [count * i // pieces for i in range(pieces + 1)]
    return [list(range(low, high)) for low, high in itertools.pairwise(edges)]
