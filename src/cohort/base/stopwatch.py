"""Seconds by stage.

A GPU works behind the host: without waiting for it, the seconds of a stage would be charged to whichever stage next reads
a result. So a lap waits for the device first, where it is told how. That is a handful of waits per step, at moments where
the next stage needs the results anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Stopwatch:
    """Each lap is the time since the one before, so the laps add up to the whole."""

    def __init__(self, wait: Callable[[], None] | None = None) -> None:
        """`wait`: returns when everything that was begun is done; None where nothing works behind the host."""
        self.wait = wait
        self.last = time.monotonic()
        self.seconds: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        if self.wait is not None:
            self.wait()
        now = time.monotonic()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self.last
        self.last = now

    def take(self) -> dict[str, float]:
        """The laps so far; those that follow begin from nothing."""
        taken, self.seconds = self.seconds, {}
        return taken
