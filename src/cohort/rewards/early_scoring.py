"""Scoring completions while others are still being sampled, for parts that score each completion on its own.

    on_completion = runner.start_early_scoring(prompts, step=1, num_steps=200)      # None: no part can start early
    ...                                                     # the engine calls on_completion(row, completion) for each one
    scored = runner.score(prompts, completions, step=1, num_steps=200)

Thread timing decides which completions share a call, and no number may depend on it. So early answers count only if they are
equal to those of one call for all completions: every call was answered, no logged value was dropped, and all calls logged the same
columns. Otherwise `score` calls the part again with the whole batch, and the part is never scored early again.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cohort.base.threads import Ended, start_thread
from cohort.rewards.call import Answered, Failed, RewardEntry, TrainerState
from cohort.rewards.contract import Bound, ScoringBatch, Verdicts
from cohort.types import Completion, Prompt

LEAST_S = 0.1
"""Parts that took less in the last step are not scored early: reporting completions costs the engine time too."""
GATHER_S = 0.005
"""Delay of a first call: an engine finishes several completions at once and reports them one by one."""
UNSAMPLED = Completion((), (), "stop", "")

OnCompletion = Callable[[int, Completion], None]
"""Receives a finished completion and its place among those of the step."""


@dataclass
class EarlyPart:
    """The early calls of one part, each for all completions that have arrived: a slow part gets fewer and larger calls."""

    bound: Bound
    step: EarlyScoring
    call: Callable[[ScoringBatch, Sequence[int]], Answered | Failed]
    in_worker: bool
    side_by_side: int
    seconds: float = 0.0
    """Time with at least one call running."""
    problem: str = ""
    """Why the answers do not count."""
    answers: dict[int, tuple[list[int], Answered]] = field(default_factory=dict)
    """(rows, reply) of each call, by its first row."""
    waiting: list[int] = field(default_factory=list)
    active: int = 0
    began: float = 0.0
    changed: threading.Condition = field(default_factory=threading.Condition)
    ended: Ended[None] = field(default_factory=queue.SimpleQueue)

    def add(self, row: int) -> None:
        with self.changed:
            self.waiting.append(row)
            if self.active < self.side_by_side and not self.problem:
                self.began = self.began if self.active else time.monotonic()
                self.active += 1
                start_thread(self._work, self.ended)

    def _work(self) -> None:
        time.sleep(GATHER_S)
        while rows := self._take_rows():
            try:
                reply = self.call(self.step.collect_batch(rows), range(len(rows)))
                failure = reply.detail if isinstance(reply, Failed) else "a log was dropped" if reply.dropped else ""
            except BaseException as raised:  # `score` will meet the same exception, and handle it
                failure = f"{type(raised).__name__}: {raised}"
            with self.changed:
                if failure:
                    self.problem = self.problem or (failure.strip().splitlines() or ["it failed"])[-1]
                else:
                    self.answers[rows[0]] = rows, reply  # type: ignore[assignment]

    def _take_rows(self) -> list[int]:
        """This thread's share of the waiting rows. Without any the thread ends."""
        with self.changed:
            share = 0 if self.problem else -(-len(self.waiting) // self.side_by_side)
            rows, self.waiting = sorted(self.waiting[:share]), self.waiting[share:]
            if not rows:
                self.active -= 1
                if not self.active:
                    self.seconds += time.monotonic() - self.began
                self.changed.notify_all()
            return rows

    def wait(self) -> None:
        """Wait until no call is running."""
        with self.changed:
            self.changed.wait_for(lambda: not self.active)

    def fill(self, verdicts: Verdicts) -> bool:
        """Fill in the verdicts if they equal those of one call for all rows. Otherwise the part is not scored early again."""
        self.wait()
        entries: dict[int, RewardEntry] = {}
        logged: dict[str, list[float]] = {}
        for _, (rows, reply) in sorted(self.answers.items()):
            entries |= zip(rows, reply.entries, strict=True)
            for name, values in reply.metrics.items():
                logged.setdefault(name, []).extend(values)
        if not self.problem and len({tuple(entry.extras) for entry in entries.values()}) > 1:
            self.problem = "its calls logged different columns"
        if self.problem:
            self.bound.scores_early = False
            return False
        count = len(verdicts.entries)
        verdicts.add(range(count), Answered([entries[row] for row in range(count)], logged))
        verdicts.seconds = self.bound.seconds = self.seconds
        self.bound.limits_in_a_row = 0
        return True


@dataclass
class EarlyScoring:
    """The completions of a step that are already sampled, and the parts that score them."""

    prompts: Sequence[Prompt]
    first: int
    """Place of this process's first prompt among those of all processes."""
    columns: tuple[str, ...]
    """Columns of the rows of all processes."""
    state: TrainerState
    on_sampled: Callable[[int, int], None] | None
    """Receives (completions sampled, completions)."""
    parts: list[EarlyPart] = field(default_factory=list)
    completions: dict[int, Completion] = field(default_factory=dict)

    def collect_batch(self, rows: Sequence[int]) -> ScoringBatch:
        """The data of these rows; a completion that is not sampled yet is empty."""
        completions = [self.completions.get(row, UNSAMPLED) for row in rows]
        return ScoringBatch.collect([self.prompts[row] for row in rows], completions, self.columns, self.state)

    def add(self, place: int, completion: Completion) -> None:
        row = place - self.first
        if 0 <= row < len(self.prompts):
            self.completions[row] = completion
            for part in self.parts:
                part.add(row)
            if self.on_sampled is not None:
                self.on_sampled(len(self.completions), len(self.prompts))

    def find_parts(self, prompts: Sequence[Prompt], completions: Sequence[Completion]) -> dict[str, EarlyPart]:
        """The parts by name if they have scored exactly these completions; otherwise none, once their calls have ended."""
        scored = [self.completions.get(row) for row in range(len(self.prompts))]
        same = len(prompts) == len(self.prompts) and all(one is other for one, other in zip(prompts, self.prompts, strict=True))
        if same and scored == list(completions):
            return {part.bound.name: part for part in self.parts}
        for part in self.parts:
            part.wait()
        return {}


def is_worth_starting(bound: Bound) -> bool:
    """Whether calls for some of the completions give the same results, and would save time."""
    return bound.signature.per_completion and bound.scores_early and bound.seconds >= LEAST_S
