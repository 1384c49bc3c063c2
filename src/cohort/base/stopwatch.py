"""Measures the seconds of each stage, and how many of them this process waited for other ranks.

A GPU runs asynchronously: without synchronisation, the time of a stage would be counted for the next stage that reads a result. So each
lap first waits for the device. These are a few waits per step, at points where the next stage needs the results anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from cohort.base.world import ALONE, World


@dataclass
class Laps:
    """Measurements by stage."""

    seconds: dict[str, float] = field(default_factory=dict)
    waited: dict[str, float] = field(default_factory=dict)
    """The part of these seconds spent waiting for slower ranks; no entry for stages without waiting."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Tokens that this process handled, for stages that split tokens over ranks."""

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
        """`wait`: synchronises the device; None without an asynchronous device."""
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
        """Return the laps so far and start again from zero."""
        taken, self.laps = self.laps, Laps()
        return taken
