"""Seconds by stage, and how many of them this process has waited for other ranks.

A GPU works behind the host: without waiting for it, the seconds of a stage would be charged to whichever stage next reads
a result. So a lap waits for the device first, where it is told how. That is a handful of waits per step, at moments where
the next stage needs the results anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cohort.base.world import ALONE, World


@dataclass
class Laps:
    """What was measured, by stage."""

    seconds: dict[str, float] = field(default_factory=dict)
    waited: dict[str, float] = field(default_factory=dict)
    """Of these seconds, those spent until the last rank had come; without an entry where nobody was waited for."""
    tokens: dict[str, int] = field(default_factory=dict)
    """This process's share of the tokens, of the stages that deal them out."""

    def add(self, stage: str, seconds: float, waited: float = 0.0, tokens: int = 0) -> None:
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        if waited:
            self.waited[stage] = self.waited.get(stage, 0.0) + waited
        if tokens:
            self.tokens[stage] = self.tokens.get(stage, 0) + tokens

    def add_all(self, others: Laps) -> None:
        for stage, seconds in others.seconds.items():
            self.add(stage, seconds, others.waited.get(stage, 0.0), others.tokens.get(stage, 0))


class Stopwatch:
    """Each lap is the time since the one before, so the laps add up to the whole."""

    def __init__(self, wait: Callable[[], None] | None = None, world: World = ALONE) -> None:
        """`wait`: returns when everything that was begun is done; None where nothing works behind the host."""
        self.wait, self.world = wait, world
        self.last, self.last_waited = time.monotonic(), world.waited
        self.laps = Laps()

    def lap(self, stage: str, tokens: int = 0) -> None:
        if self.wait is not None:
            self.wait()
        now, waited = time.monotonic(), self.world.waited
        self.laps.add(stage, now - self.last, waited - self.last_waited, tokens)
        self.last, self.last_waited = now, waited

    def take(self) -> Laps:
        """The laps so far; those that follow begin from nothing."""
        taken, self.laps = self.laps, Laps()
        return taken
