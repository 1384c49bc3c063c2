"""Calls of a reward completion by completion, after a call of many gave nothing; and how far a part has got."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from cohort.base.threads import run_concurrently
from cohort.errors import RewardError
from cohort.rewards.contract import Bound, Verdicts
from cohort.rewards.entries import LIMIT_KINDS, Answered, Failed

HOPELESS_LIMITS = 8
"""So many single completions in the time limit, and none answered: the function hangs, not the completions."""
TELL_S = 0.1
"""Between two times that those who watch are told of single completions."""


@dataclass
class Singles:
    """Calls completion by completion, after a call of many gave nothing: one bad row is then one fault."""

    bound: Bound
    call: Callable[[Sequence[int]], Answered | Failed]
    verdicts: Verdicts
    answered: bool
    """Whether the function has answered any call of the step."""
    max_faults: float
    crashes: int = 0
    stop: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def call_each(self, rows: Sequence[int], side_by_side: int) -> None:
        todo = iter(rows)
        run_concurrently([functools.partial(self._call_next, todo) for _ in range(min(side_by_side, len(rows)))])

    def _call_next(self, todo: Iterable[int]) -> None:
        while not self.stop:
            with self.lock:
                row = next(iter(todo), None)
            if row is None:
                return
            try:
                reply = self.call([row])
            except BaseException:
                self.stop = True  # the run ends with this: the other threads need not finish the rows
                raise
            with self.lock:
                self._record(row, reply)

    def _record(self, row: int, reply: Answered | Failed) -> None:
        self.verdicts.add([row], reply)
        if isinstance(reply, Failed) and reply.kind in LIMIT_KINDS:
            self.bound.limits_in_a_row += 1
            if not self.answered and self.bound.limits_in_a_row >= HOPELESS_LIMITS:
                self.stop = True
                raise RewardError(self.bound.describe_hopeless(reply.kind, HOPELESS_LIMITS))
        else:
            self.answered, self.bound.limits_in_a_row = True, 0
        if isinstance(reply, Failed) and reply.kind == "crash":
            # Each crash costs a new process: once the step cannot be saved, the rest of it is not tried.
            self.crashes += 1
            if self.crashes > self.max_faults:
                self.stop = self.verdicts.stopped_early = True


class Progress:
    """How many completions of the step one part has judged; told to whoever watches."""

    def __init__(self, name: str, total: int, tell: Callable[[str, int, int], None] | None) -> None:
        self._name, self._total, self._tell = name, total, tell
        self._done = self._certain = 0
        self._told = -math.inf
        self._lock = threading.Lock()

    def count_one(self) -> None:
        """One more; those who watch are told of it now and then, for thousands may come at once."""
        self._advance(self._done + 1, tell=time.monotonic() - self._told >= TELL_S)

    def count_call(self, more: int) -> None:
        """A whole call was answered, whether or not the function reported on its completions one by one."""
        with self._lock:
            self._certain += more
        self._advance(max(self._done, self._certain))

    def _advance(self, done: int, tell: bool = True) -> None:
        with self._lock:
            self._done = min(done, self._total)
        if self._tell is not None and (tell or done >= self._total):
            self._told = time.monotonic()
            with contextlib.suppress(Exception):  # whoever watches cannot stop the run
                self._tell(self._name, self._done, self._total)


def spread_rows(rows: Sequence[int]) -> list[int]:
    """The same rows, the first few from all over the batch: one group that hangs is not the whole function."""
    stride = math.ceil(len(rows) / HOPELESS_LIMITS)
    first = list(rows[::stride])
    chosen = set(first)
    return first + [row for row in rows if row not in chosen]
