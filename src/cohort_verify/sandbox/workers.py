"""Long-lived jailed processes for verifiers that must not be trusted with model text: Math-Verify, reasoning-gym.

    pool = shared_pool("package.module:function", limits=Limits(cpu_s=2, memory_mb=1024))
    answer = pool.ask({"found": "1/2", "gold": "0.5"})

Starting one imports the module, which takes longer than most questions; so a worker answers many, and is killed and
replaced when a question runs into a limit. The limits are those of one question.
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
"""Tries to start a worker before the question counts as unanswerable."""


class WorkerPool(Pool[Jail]):
    """So many jailed processes with one function; usable from any thread."""

    def __init__(self, entry: str, limits: Limits, size: int = 0, retire_after: Callable[[Answer], bool] | None = None) -> None:
        self.entry, self.limits = entry, limits
        self.retire_after = retire_after
        """Answers after which a worker is replaced: it may have been stopped in the middle of a change."""
        self.replaced = 0
        """Workers that were killed and started anew."""
        super().__init__(size or max(1, min(os.cpu_count() or 1, MAX_WORKERS)))

    def ask(self, message: Any, limits: Limits | None = None) -> Answer:
        """One question. Raises JailUnavailable where there is no jail."""
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
                # A worker that has answered before may have run full of what others asked: a fresh one decides.
                if worker.questions == 1 or answer.problem not in ("memory", "output", "files", "crash"):
                    break
        return answer

    def _start(self) -> Jail:
        worker = Jail("worker", self.entry, self.limits, packages=find_installed_packages(), modules=find_own_packages())
        try:
            worker.stop_charging(LOAD_LIMIT_S)
            word, *said = worker.hear()
            if word != "loaded":
                raise JailUnavailable(f"a jailed worker cannot import {self.entry}: {': '.join(map(str, said))}")
        except BaseException:
            worker.close()
            raise
        return worker

    def _ask_worker(self, worker: Jail, text: str, limits: Limits) -> Answer:
        """The answer of one worker, which is closed unless it can go on."""
        try:
            worker.forget_output()
            worker.charge(limits)
            word, *said = worker.ask_raw(text)
            worker.stop_charging(float("inf"))
        except ProcessEnded as ended:
            self.replaced += 1
            return Answer(problem="crash" if ended.kind == "exit" else ended.kind, detail=ended.detail)
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
        return answer


def find_own_packages() -> dict[str, str]:
    """The packages of this distribution by name: exactly their own folders.

    The folder above them may be a checkout, with tests and reference answers, which no worker may see.
    """
    here = Path(__file__).resolve().parents[1]
    return {name: str(here.with_name(name)) for name in ("cohort", "cohort_verify") if here.with_name(name).is_dir()}


def shared_pool(
    entry: str, limits: Limits = DEFAULTS, size: int = 0, retire_after: Callable[[Answer], bool] | None = None
) -> WorkerPool:
    """The pool of this process for that function and memory limit: made on first use, closed at exit."""
    return keep_pool((entry, limits.memory_mb), lambda: WorkerPool(entry, limits, size, retire_after))
