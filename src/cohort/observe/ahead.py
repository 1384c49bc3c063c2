"""Sampling, scoring and training side by side: who waits for whom, and what to change. No torch.

A batch is sampled, scored and trained on one after the other, and lag + 1 batches are on their way at a time. So a step takes as long as the
longest of

    training,  sampling,  scoring,  (training + sampling + scoring) / (lag + 1)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from cohort.base.text import write_percent, write_seconds
from cohort.observe.perf import drop_first_step, seconds_of

Row = Mapping[str, Any]
NOTICED = 0.1
"""Share of a step that training may wait before somebody else is called the slowest."""
NEARLY = 0.85
"""Share of a step that sampling or scoring must take alone to be what it is waited for."""

Slowest = Literal["training", "sampling", "scoring", "both"]
"""both: sampling and scoring together, where neither alone takes as long as a step."""


@dataclass(frozen=True)
class AheadTimes:
    """Seconds of the median step."""

    train: float
    wait: float
    sample: float
    score: float

    @property
    def wait_share(self) -> float:
        return self.wait / (self.wait + self.train) if self.wait else 0.0

    @property
    def slowest(self) -> Slowest:
        if self.wait_share < NOTICED:
            return "training"
        if max(self.sample, self.score) < NEARLY * (self.train + self.wait):
            return "both"
        return "sampling" if self.sample >= self.score else "scoring"


def measure_ahead(rows: Sequence[Row]) -> AheadTimes | None:
    """None where nothing is sampled ahead, or no second was measured."""
    chosen = [row for row in drop_first_step(rows) if isinstance(row.get("ahead/sample_seconds"), int | float)]
    whole = [seconds_of(row, "step") or 0.0 for row in chosen]
    waits = [seconds_of(row, "wait") or 0.0 for row in chosen]
    if not chosen or not median(whole):
        return None
    sample, score = (median(float(row.get(f"ahead/{name}_seconds") or 0.0) for row in chosen) for name in ("sample", "score"))
    return AheadTimes(median(a - b for a, b in zip(whole, waits, strict=True)), median(waits), sample, score)


CHANGE = {
    "training": "nobody is waited for; to go on faster, train faster: more ranks, or larger micro-batches",
    "sampling": "sampling is the slowest: more servers or ranks to sample with, or shorter completions",
    "scoring": "the reward functions are the slowest: make them faster, or let more of them run side by side",
    "both": "sampling and scoring take so long only one after the other: raise ahead.lag, so that more batches are on their way",
}


def describe_ahead(rows: Sequence[Row]) -> str:
    """Who waits for whom in a sentence, and what to change. "" where nothing is sampled ahead."""
    times = measure_ahead(rows)
    if times is None:
        return ""
    parts = {"sampling": times.sample, "scoring": times.score, "training": times.train}
    seconds = ", ".join(f"{name} {write_seconds(value)}" for name, value in parts.items())
    return f"{seconds} a step; training waited in {write_percent(times.wait_share)} of its time; {CHANGE[times.slowest]}"
