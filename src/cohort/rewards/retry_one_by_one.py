"""Scoring completions one at a time after a failed batch call, and the progress of a part in completions."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence

from cohort.base.threads import run_concurrently
from cohort.errors import RewardError
from cohort.rewards.call import Answered, Failed
from cohort.rewards.contract import Bound, Verdicts
from cohort_verify.text import LIMIT_KINDS

MAX_LIMITS = 8
"""If this many single completions hit a limit and none was answered, the function hangs, whatever the completion."""
REPORT_EVERY_S = 0.1
"""Interval between progress reports on single completions."""


def retry_one_by_one(
    bound: Bound,
    call: Callable[[Sequence[int]], Answered | Failed],
    verdicts: Verdicts,
    rows: Sequence[int],
    side_by_side: int,
    answered: bool,
    max_faults: float,
) -> None:
    """Call the function for each of these rows separately: one bad row is then one fault.

    answered: whether the function has answered any call of the step. max_faults: crashes that the step can have.
    """
    todo, lock = iter(spread_rows(rows)), threading.Lock()
    crashes, stop = 0, False

    def call_next() -> None:
        nonlocal stop
        while not stop:
            with lock:
                row = next(todo, None)
            if row is None:
                return
            try:
                reply = call([row])
                with lock:
                    record(row, reply)
            except BaseException:
                stop = True  # the run ends with this: the other threads need not finish the rows
                raise

    def record(row: int, reply: Answered | Failed) -> None:
        nonlocal answered, crashes, stop
        verdicts.add([row], reply)
        if not isinstance(reply, Failed) or reply.kind not in LIMIT_KINDS:
            answered, bound.limits_in_a_row = True, 0
        else:
            bound.limits_in_a_row += 1
            if not answered and bound.limits_in_a_row >= MAX_LIMITS:
                raise RewardError(describe_hanging(bound, reply.kind))
        if isinstance(reply, Failed) and reply.kind == "crash":
            # Each crash costs a new process: once the step cannot be saved, its other rows are not tried.
            crashes += 1
            if crashes > max_faults:
                stop = verdicts.stopped_early = True

    run_concurrently([call_next] * min(side_by_side, len(rows)))


def describe_hanging(bound: Bound, kind: str) -> str:
    """The message about a function that hit a limit on every single completion."""
    limit = f"timeout_s = {bound.part.timeout_s:g} s" if kind == "timeout" else f"memory_mb = {bound.memory_mb:g} MB"
    verb, either = ("hangs", "never returns") if kind == "timeout" else ("runs out of memory", "always needs more")
    return (
        f"reward {bound.name!r} {verb}: {MAX_LIMITS} completions were tried one at a time, and none was answered within {limit}. "
        f"Either the function {either}, or the limit is too low for it."
    )


def spread_rows(rows: Sequence[int]) -> list[int]:
    """The same rows, with the first few spread over the batch: one group that hangs does not stand for the whole function."""
    first = list(rows[:: math.ceil(len(rows) / MAX_LIMITS)])
    chosen = set(first)
    return first + [row for row in rows if row not in chosen]


class Progress:
    """Number of completions of the step that one part has scored, reported to `report(part, scored, total)`."""

    def __init__(self, name: str, total: int, report: Callable[[str, int, int], None] | None) -> None:
        self._name, self._total, self._report = name, total, report
        self._done = self._certain = 0
        self._last = -math.inf
        self._lock = threading.Lock()

    def count_one(self) -> None:
        """One more completion. Reported at intervals, since thousands may come at once."""
        self._advance(self._done + 1, report=time.monotonic() - self._last >= REPORT_EVERY_S)

    def count_call(self, more: int) -> None:
        """A whole call was answered, whether or not the function logged verdicts one by one."""
        with self._lock:
            self._certain += more
        self._advance(max(self._done, self._certain))

    def _advance(self, done: int, report: bool = True) -> None:
        with self._lock:
            self._done = min(done, self._total)
        if self._report is not None and (report or done >= self._total):
            self._last = time.monotonic()
            with contextlib.suppress(Exception):  # an observer cannot stop the run
                self._report(self._name, self._done, self._total)
