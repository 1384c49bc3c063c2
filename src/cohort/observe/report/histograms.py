"""Histograms of reward and length: the first steps of a run beside its last ones, from the files of rollouts/.

A mean hides what a distribution shows: a reward that only ever takes two values, completions that all run into the limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from cohort.errors import RunError
from cohort.observe.report.charts import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, Chart, Scale, ticks, written
from cohort.observe.report.data import RunData, number
from cohort.observe.report.frame import text
from cohort.observe.rollouts import kept_steps, read_rollouts

STEPS = 10
"""Steps on each side at most; a run of fewer than twice as many is cut in halves."""
BARS = 20
FEW = 12
"""A quantity of so few different values has a bar for each, and no ranges."""
WIDEST = 60
"""Of a bar, in the units of the drawing."""


@dataclass(frozen=True)
class Side:
    """The values of some steps, and what they are called."""

    label: str
    values: Sequence[float]


def histograms(run: RunData) -> str:
    """The section of a report; nothing where a run kept no completions of two steps."""
    steps = kept_steps(run.folder / "rollouts")
    count = min(STEPS, len(steps) // 2)
    if not count:
        return ""
    sides = [
        (label, read_steps(run, part))
        for label, part in ((f"first {count} kept steps", steps[:count]), (f"last {count}", steps[-count:]))
    ]
    drawn = []
    for title, caption, column in (
        ("Rewards", "Of single completions, before and after most of the training.", "reward"),
        ("Lengths", "Tokens of single completions. A bar at the right end is the limit that cuts them.", "length"),
    ):
        found = [
            Side(label, [value for row in rows if (value := number(row.get(column))) is not None]) for label, rows in sides
        ]
        if all(side.values for side in found):
            drawn.append(histogram(title, caption, found))
    return f'<h2>Completions by reward and length</h2><div class="grid2">{"".join(drawn)}</div>' if drawn else ""


def read_steps(run: RunData, steps: Sequence[int]) -> list[dict[str, Any]]:
    """Every completion of these steps; a file that cannot be read costs its step."""
    rows: list[dict[str, Any]] = []
    for step in steps:
        try:
            rows += read_rollouts(run.folder / "rollouts" / f"step-{step:06d}.parquet")
        except RunError:
            continue
    return rows


# -- bins --------------------------------------------------------------------------------------------------------------


def edges_of(sides: Sequence[Side]) -> tuple[list[float], list[float]]:
    """(round borders of the bars, what is written below them); one bar for each value where there are few of them."""
    values = sorted({value for side in sides for value in side.values})
    gap = min((b - a for a, b in pairwise(values)), default=1.0)
    if len(values) <= FEW and (values[-1] - values[0]) / gap <= BARS:
        count = round((values[-1] - values[0]) / gap)
        return [values[0] + (i - 0.5) * gap for i in range(count + 2)], values
    round_ones = ticks(values[0], values[-1], BARS)
    step = round_ones[1] - round_ones[0] if len(round_ones) > 1 else (values[-1] - values[0]) / BARS
    first = math.floor(values[0] / step) * step
    count = math.floor((values[-1] - first) / step + 1e-9) + 1
    edges = [first + i * step for i in range(count + 1)]
    return edges, ticks(edges[0], edges[-1], 6)


def shares_of(side: Side, edges: Sequence[float]) -> list[float]:
    """Share of the values between each two borders."""
    width, last = edges[1] - edges[0], len(edges) - 2
    counts = [0] * (last + 1)
    for value in side.values:
        counts[min(last, max(0, math.floor((value - edges[0]) / width + 1e-9)))] += 1
    return [count / len(side.values) for count in counts]


# -- drawing -----------------------------------------------------------------------------------------------------------


def histogram(title: str, caption: str, sides: Sequence[Side]) -> str:
    """An SVG with a bar per side in every bin. Each bar says its range and share; the whole says the medians."""
    edges, marks = edges_of(sides)
    shares = [shares_of(side, edges) for side in sides]
    top = next((top for top in (0.1, 0.25, 0.5, 1.0) if max(map(max, shares)) <= top), 1.0)
    scale = Scale(edges[0], edges[-1], 0.0, top)
    slot = (scale.x(edges[1]) - scale.x(edges[0])) / len(sides)
    bars = "".join(
        bar(scale, edges, place, index, share, slot, sides[index].label)
        for index, row in enumerate(shares)
        for place, share in enumerate(row)
        if share
    )
    legend = "".join(f'<span><i class="c{index}"></i>{text(side.label)}</span>' for index, side in enumerate(sides))
    described = "; ".join(f"{side.label}: median {median(side.values):.4g} of {len(side.values)}" for side in sides)
    return (
        f'<figure class="card chart"><figcaption><h3>{text(title)}</h3><div class="legend">{legend}</div></figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(f"{title}, {described}")}">'
        f"{rules(scale, top, marks)}{bars}</svg>"
        f'<p class="caption">{text(caption)} {text(described[0].upper() + described[1:])}.</p></figure>'
    )


def rules(scale: Scale, top: float, marks: Sequence[float]) -> str:
    """Shares at the left, values below."""
    parts, chart, plain = [], Chart("", "", (), share=True), Chart("", "", ())
    for tick in ticks(0.0, top, 5):
        y = scale.y(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 3.5:.1f}" text-anchor="end">{written(tick, chart)}</text>')
    for tick in marks:
        parts.append(
            f'<text class="tick" x="{scale.x(tick):.1f}" y="{HEIGHT - 9}" text-anchor="middle">{written(tick, plain)}</text>'
        )
    return "".join(parts)


def bar(scale: Scale, edges: Sequence[float], place: int, index: int, share: float, slot: float, label: str) -> str:
    middle, y = (scale.x(edges[place]) + scale.x(edges[place + 1])) / 2, scale.y(share)
    width = min(slot, WIDEST)
    left = middle + (index - 1) * width
    low, high = edges[place], edges[place + 1]
    said = f"{label}: {100 * share:.1f} % from {low:.4g} to {high:.4g}"
    return (
        f'<rect class="area c{index}" x="{left + 0.5:.1f}" y="{y:.1f}" width="{max(1.0, width - 1):.1f}" '
        f'height="{HEIGHT - BOTTOM - y:.1f}"><title>{text(said)}</title></rect>'
    )
