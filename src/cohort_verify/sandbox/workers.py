"""Long-lived jailed processes for verifiers that model text could subvert, such as Math-Verify and reasoning-gym.

    pool = shared_pool("package.module:function", limits=Limits(cpu_s=2, memory_mb=1024))
    answer = pool.ask({"found": "1/2", "gold": "0.5"})

Importing the module takes longer than most messages, so a worker handles many. It is killed and replaced when a message hits a
limit. The limits apply to each message.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cohort_verify.sandbox.jail import Jail
from cohort_verify.sandbox.limits import JailUnavailable, Limits
from cohort_verify.sandbox.tiers import find_installed_packages
from cohort_verify.workers import Answer, Pool, PoolClosed, ProcessEnded, keep_pool

LOAD_LIMIT_S = 120.0
MAX_WORKERS = 8
DEFAULTS = Limits(memory_mb=1024)
STARTS = 3
"""Attempts to start a worker before the message fails."""


class WorkerPool(Pool[Jail]):
    """A number of jailed processes with one function. Safe to use from any thread."""

    def __init__(self, entry: str, limits: Limits, size: int = 0, retire_after: Callable[[Answer], bool] | None = None) -> None:
        self.entry, self.limits = entry, limits
        self.retire_after = retire_after
        """Selects answers after which a worker is replaced, because it may have been interrupted during a change."""
        self.replaced = 0
        """Number of workers that were killed and replaced."""
        super().__init__(size or max(1, min(os.cpu_count() or 1, MAX_WORKERS)))

    def ask(self, message: Any, limits: Limits | None = None) -> Answer:
        """Send one message. Raises JailUnavailable where there is no jail."""
        text, answer = json.dumps(message), Answer()
        with self.borrow_place() as place:
            for _ in range(STARTS):
                try:
                    worker = place.fill()
                except PoolClosed:
                    return Answer(problem="infrastructure", detail="the pool is closed")
                except ProcessEnded as problem:  # it did not start
                    answer = Answer(problem="infrastructure", detail=problem.detail)
                    continue
                worker.questions += 1
                answer = self._ask_worker(worker, text, limits or self.limits)
                # An older worker may have failed because of earlier messages, so a fresh one decides.
                if worker.questions == 1 or answer.problem not in ("memory", "output", "files", "crash"):
                    break
        return answer

    def _start(self) -> Jail:
        worker = Jail("worker", self.entry, self.limits, packages=find_installed_packages(), modules=find_own_packages())
        try:
            worker.stop_charging(LOAD_LIMIT_S)
            word, *rest = worker.receive()
            if word != "loaded":
                raise JailUnavailable(f"a jailed worker cannot import {self.entry}: {': '.join(map(str, rest))}")
        except BaseException:
            worker.close()
            raise
        return worker

    def _ask_worker(self, worker: Jail, text: str, limits: Limits) -> Answer:
        """Return the answer of one worker. Closes the worker unless it can continue."""
        try:
            worker.reset_output()
            worker.charge(limits)
            word, *rest = worker.request(text)
            worker.stop_charging(float("inf"))
        except ProcessEnded as ended:
            self.replaced += 1
            return Answer(problem="crash" if ended.kind == "exit" else ended.kind, detail=ended.detail)
        except BaseException:
            worker.close()
            raise
        name, message = (str(part) for part in [*rest, "", ""][:2])
        if word == "value" and len(rest) == 1:
            answer = Answer(rest[0])
        elif name == "MemoryError":
            answer = Answer(problem="memory", detail=message)
        else:
            answer = Answer(problem="exception", detail=f"{name}: {message}")
        # Close it if its heap may be too small, it was interrupted, or it has sent more than one reply: the next message would
        # get the wrong answer.
        if answer.problem == "memory" or worker.has_more or (self.retire_after is not None and self.retire_after(answer)):
            worker.close()
            self.replaced += 1
        return answer


def find_own_packages() -> dict[str, str]:
    """Return the folders of the packages in this distribution, by name.

    Not the folder above them, which may be a checkout with tests and reference answers.
    """
    here = Path(__file__).resolve().parents[1]
    return {name: str(here.with_name(name)) for name in ("cohort", "cohort_verify") if here.with_name(name).is_dir()}


def shared_pool(
    entry: str, limits: Limits = DEFAULTS, size: int = 0, retire_after: Callable[[Answer], bool] | None = None
) -> WorkerPool:
    """Return this process's pool for the function and memory limit. Pools are made on first use and closed at exit."""
    return keep_pool((entry, limits.memory_mb), lambda: WorkerPool(entry, limits, size, retire_after))
