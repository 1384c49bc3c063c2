"""Seconds by stage."""

from __future__ import annotations

import time


class Stopwatch:
    """Each lap is the time since the one before."""

    def __init__(self) -> None:
        self.started = self.last = time.monotonic()
        self.seconds: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        now = time.monotonic()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self.last
        self.last = now

    def total(self) -> float:
        return time.monotonic() - self.started
