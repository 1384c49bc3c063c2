"""Completions judged while others are still sampled, by parts that look at one completion at a time.

    hear = runner.listen(prompts, step=1, num_steps=200)          # None: no part would begin before all are there
    ...                                                           # hear(row, completion), as an engine finishes them
    scored = runner.score(prompts, completions, step=1, num_steps=200)

Who hears what, and when, is a matter of luck, and no number may depend on it. So the answers count only where they are plainly those
that one call for all would have given: every call was answered, nothing that it logged was dropped, and all logged the same
columns. Else `score` asks again as if nobody had listened, and the part is not told again.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cohort.base.threads import Ended, start_thread
from cohort.rewards.call import RewardCall, TrainerState
from cohort.rewards.contract import Bound, ScoringBatch, Verdicts
from cohort.rewards.entries import Answered, Failed, RewardEntry
from cohort.types import Completion, Prompt

WORTH_S = 0.1
"""A part that took less in the step before is not told: telling takes the engine time as well."""
GATHER_S = 0.005
"""A first call waits so long for others: an engine finishes several at once, and tells of them one by one."""
UNSAMPLED = Completion((), (), "stop", "")

Hear = Callable[[int, Completion], None]
"""Told of a completion and of its place among those of the step."""


@dataclass
class EarlyPart:
    """The calls of one part. Each is for whatever has been heard by then: the slower the part, the fewer and larger they are."""

    bound: Bound
    heard: Heard
    call: Callable[[RewardCall], Answered | Failed]
    in_worker: bool
    side_by_side: int
    seconds: float = 0.0
    """In which at least one call was under way."""
    problem: str = ""
    """Why the answers do not count."""
    answers: dict[int, tuple[list[int], Answered]] = field(default_factory=dict)
    """By the first of the rows of a call."""
    waiting: list[int] = field(default_factory=list)
    active: int = 0
    began: float = 0.0
    changed: threading.Condition = field(default_factory=threading.Condition)
    ended: Ended[None] = field(default_factory=queue.SimpleQueue)

    def hear(self, row: int) -> None:
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
                reply = self.call(self.heard.collect_batch(rows).make_call(self.bound, range(len(rows))))
                failed = reply.detail if isinstance(reply, Failed) else "a log was dropped" if reply.dropped else ""
            except BaseException as raised:  # whatever it is, `score` meets it again, where it belongs
                failed = f"{type(raised).__name__}: {raised}"
            with self.changed:
                if failed:
                    self.problem = self.problem or (failed.strip().splitlines() or ["it failed"])[-1]
                else:
                    self.answers[rows[0]] = rows, reply  # type: ignore[assignment]

    def _take_rows(self) -> list[int]:
        """This thread's share of what waits; with none the thread ends."""
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
        """Return when no call is under way."""
        with self.changed:
            self.changed.wait_for(lambda: not self.active)

    def fill(self, verdicts: Verdicts) -> bool:
        """Whether these are now what one call for all rows would have made them. Else nobody tells the part again."""
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
            self.bound.listens = False
            return False
        count = len(verdicts.entries)
        verdicts.add(range(count), Answered([entries[row] for row in range(count)], logged))
        verdicts.seconds = self.bound.seconds = self.seconds
        self.bound.limits_in_a_row = 0
        return True


@dataclass
class Heard:
    """What was heard of the completions of a step."""

    prompts: Sequence[Prompt]
    first: int
    """Place of the first of them among those of all processes."""
    columns: tuple[str, ...]
    """Of the rows of all processes."""
    state: TrainerState
    tell: Callable[[int, int], None] | None
    """Told (completions sampled, completions)."""
    parts: list[EarlyPart] = field(default_factory=list)
    completions: dict[int, Completion] = field(default_factory=dict)

    def collect_batch(self, rows: Sequence[int]) -> ScoringBatch:
        """What is known of these rows: of completions that are not sampled yet, nothing."""
        completions = [self.completions.get(row, UNSAMPLED) for row in rows]
        return ScoringBatch.collect([self.prompts[row] for row in rows], completions, self.columns, self.state)

    def hear(self, place: int, completion: Completion) -> None:
        row = place - self.first
        if 0 <= row < len(self.prompts):
            self.completions[row] = completion
            for part in self.parts:
                part.hear(row)
            if self.tell is not None:
                self.tell(len(self.completions), len(self.prompts))

    def find_parts(self, prompts: Sequence[Prompt], completions: Sequence[Completion]) -> dict[str, EarlyPart]:
        """The parts by name, where these are the completions that were heard of; none is called any more where they are not."""
        heard = [self.completions.get(row) for row in range(len(self.prompts))]
        same = len(prompts) == len(self.prompts) and all(one is other for one, other in zip(prompts, self.prompts, strict=True))
        if same and heard == list(completions):
            return {part.bound.name: part for part in self.parts}
        for part in self.parts:
            part.wait()
        return {}


def is_worth_telling(bound: Bound) -> bool:
    """Whether calls for some of the completions are right, and would save time."""
    return bound.signature.per_completion and bound.listens and bound.seconds >= WORTH_S
