"""Long-lived jailed processes for verifiers that must not be trusted with model text: Math-Verify, reasoning-gym.

    pool = shared_pool("package.module:function", limits=Limits(cpu_s=2, memory_mb=1024))
    answer = pool.ask({"found": "1/2", "gold": "0.5"})

Starting one imports the module, which takes longer than most questions; so a worker answers many, and is killed and
replaced when a question runs into a limit. The limits are those of one question.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cohort
from cohort.base.threads import concurrently
from cohort.sandbox.jail import Ended, Jail
from cohort.sandbox.limits import JailUnavailable, Limits

LOAD_LIMIT_S = 120.0
MAX_WORKERS = 8
DEFAULTS = Limits(memory_mb=1024)
STARTS = 3
"""Tries to start a worker before the question counts as unanswerable."""


@dataclass(frozen=True)
class Answer:
    """What a worker said. A problem of "cpu", "wall", "memory", "output", "files" or "crash" is the question's doing."""

    value: Any = None
    problem: str = ""
    detail: str = ""


class WorkerPool:
    """So many jailed processes with one function; usable from any thread."""

    def __init__(self, entry: str, limits: Limits, size: int = 0, retire_after: Callable[[Answer], bool] | None = None) -> None:
        self.entry, self.limits = entry, limits
        self.retire_after = retire_after
        """Answers after which a worker is replaced: it may have been stopped in the middle of a change."""
        self.size = size or max(1, min(os.cpu_count() or 1, MAX_WORKERS))
        self.owner = os.getpid()
        self.replaced = 0
        """Workers that were killed and started anew."""
        self._idle: queue.LifoQueue[Jail | None] = queue.LifoQueue()
        for _ in range(self.size):
            self._idle.put(None)  # started when first needed
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def ask(self, message: Any, limits: Limits | None = None) -> Answer:
        """One question. Raises JailUnavailable where there is no jail."""
        text = json.dumps(message)
        worker, answer = self._take(), Answer(problem="infrastructure", detail="the pool is closed")
        for _ in range(STARTS):
            if self._closed:
                break
            try:
                held, worker = worker or self._start(), None  # should anything go wrong, its place is filled anew
                used = held.questions
                answer, worker = self._question(held, text, limits or self.limits)
            except Ended as problem:  # it did not start
                answer = Answer(problem="infrastructure", detail=problem.detail)
                continue
            except BaseException:
                self._put(None)
                raise
            # A worker that has answered before may have run full of what others asked: a fresh one decides.
            if not (used and answer.problem in ("memory", "output", "files", "crash")):
                break
        self._put(worker)
        return answer

    def _take(self) -> Jail | None:
        """An idle worker, or None for a place that is to be filled. One that has died meanwhile is no one's doing."""
        worker = self._idle.get()
        if worker is not None and worker.ended:
            worker.close()
            return None
        return worker

    def _put(self, worker: Jail | None) -> None:
        if self._closed and worker is not None:
            worker.close()
            worker = None
        self._idle.put(worker)

    def ask_many(self, messages: Sequence[Any], limits: Limits | None = None) -> list[Answer]:
        """All questions, spread over the workers; answers in order. A slow one holds up its own worker only."""
        answers: list[Answer | None] = [None] * len(messages)
        todo = iter(range(len(messages)))
        lock = threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    index = next(todo, None)
                if index is None:
                    return
                answers[index] = self.ask(messages[index], limits)

        if messages:
            concurrently([work] * min(self.size, len(messages)))
        return [answer for answer in answers if answer is not None]

    def _start(self) -> Jail:
        worker = Jail("worker", self.entry, self.limits, packages=package_folders())
        try:
            worker.free_of_charge(LOAD_LIMIT_S)
            word, *said = worker.hear()
        except Ended:
            worker.close()
            raise
        if word != "loaded":
            worker.close()
            raise JailUnavailable(f"a jailed worker cannot import {self.entry}: {': '.join(map(str, said))}")
        return worker

    def _question(self, worker: Jail, text: str, limits: Limits) -> tuple[Answer, Jail | None]:
        """(answer, the worker if it can go on)."""
        worker.questions += 1
        try:
            worker.forget_output()
            worker.charge(limits)
            word, *said = worker.ask_raw(text)
            worker.free_of_charge(float("inf"))
        except Ended as ended:
            self.replaced += 1
            kind = "crash" if ended.kind == "exit" else ended.kind
            return Answer(problem=kind, detail=ended.detail), None
        except BaseException:
            worker.close()
            raise
        name, message = (str(part) for part in [*said, "", ""][:2])
        if word == "value" and len(said) == 1:
            answer = Answer(said[0])
        elif name == "MemoryError":
            answer = Answer(problem="memory", detail=message)
        else:
            answer = Answer(problem="exception", detail=f"{name}: {message}")
        # Retired: what is left of its heap may be too small, it was stopped in the middle of something, or it says more
        # than it was asked, and the next question would get the answer to this one.
        if answer.problem == "memory" or worker.has_more or (self.retire_after is not None and self.retire_after(answer)):
            worker.close()
            self.replaced += 1
            return answer, None
        return answer, worker

    def close(self) -> None:
        """End the idle workers; one that is out is ended by whoever has it."""
        self._closed = True
        idle: list[Jail | None] = []
        with contextlib.suppress(queue.Empty):
            while True:
                idle.append(self._idle.get_nowait())
        for worker in idle:
            if worker is not None:
                worker.close()
            self._idle.put(None)  # whoever still waits is told that it is closed


def package_folders() -> list[str]:
    """Where the trainer imports from, this package first; the interpreter's own folders are in the jail anyway."""
    own = str(Path(cohort.__file__).resolve().parent.parent)
    standard = {os.path.realpath(path) for path in (os.path.dirname(os.__file__), sys.base_prefix)}
    folders = [own, *(os.path.abspath(entry) for entry in sys.path if entry)]
    return [
        folder
        for folder in dict.fromkeys(folders)
        if os.path.isdir(folder)
        and (folder == own or os.path.basename(folder) in ("site-packages", "dist-packages"))
        and os.path.realpath(folder) not in standard
    ]


_pools: dict[tuple[str, int], WorkerPool] = {}
_lock = threading.Lock()


def shared_pool(
    entry: str, limits: Limits = DEFAULTS, size: int = 0, retire_after: Callable[[Answer], bool] | None = None
) -> WorkerPool:
    """The pool of this process for that function and memory limit: made on first use, closed at exit."""
    with _lock:
        key = (entry, limits.memory_mb)
        pool = _pools.get(key)
        if pool is None or pool.closed or pool.owner != os.getpid():  # after a fork the workers belong to the parent
            pool = _pools[key] = WorkerPool(entry, replace(limits), size, retire_after)
        return pool


@atexit.register
def close_pools() -> None:
    for pool in list(_pools.values()):
        if pool.owner == os.getpid():
            pool.close()
