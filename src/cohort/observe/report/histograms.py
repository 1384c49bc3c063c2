"""Histograms of reward and length: the first steps of a run beside its last ones, from the files of rollouts/.

A mean hides what a distribution shows: a reward that only ever takes two values, completions that all run into the limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from cohort.observe.report.charts import Figure, Scale, draw_grid, draw_numbers, find_ticks, make_mark, write_value
from cohort.observe.report.data import RunData, as_number
from cohort.observe.report.frame import Part
from cohort.observe.rollouts import list_kept_steps

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


def draw_histograms(run: RunData) -> Part | None:
    """The section of a report; None where a run kept no completions of two steps."""
    steps = list_kept_steps(run.folder.rollouts)
    count = min(STEPS, len(steps) // 2)
    if not count:
        return None
    sides = [
        (label, run.read_completions(part, ("reward", "length")))
        for label, part in ((f"first {count} kept steps", steps[:count]), (f"last {count}", steps[-count:]))
    ]
    drawn = []
    for title, caption, column in (
        ("Rewards", "Of single completions, before and after most of the training.", "reward"),
        ("Lengths", "Tokens of single completions. A bar at the right end is the limit that cuts them.", "length"),
    ):
        found = [
            Side(label, [value for row in rows if (value := as_number(row.get(column))) is not None]) for label, rows in sides
        ]
        if all(side.values for side in found):
            drawn.append(draw_histogram(title, caption, found))
    return ("figures", "Completions by reward and length", drawn) if drawn else None


# -- bins --------------------------------------------------------------------------------------------------------------


def find_edges(sides: Sequence[Side]) -> tuple[list[float], list[float]]:
    """(round borders of the bars, what is written below them); one bar for each value where there are few of them."""
    values = sorted({value for side in sides for value in side.values})
    gap = min((b - a for a, b in pairwise(values)), default=1.0)
    if len(values) <= FEW and (values[-1] - values[0]) / gap <= BARS:
        count = round((values[-1] - values[0]) / gap)
        return [values[0] + (i - 0.5) * gap for i in range(count + 2)], values
    round_ones = find_ticks(values[0], values[-1], BARS)
    step = round_ones[1] - round_ones[0] if len(round_ones) > 1 else (values[-1] - values[0]) / BARS
    first = math.floor(values[0] / step) * step
    count = math.floor((values[-1] - first) / step + 1e-9) + 1
    edges = [first + i * step for i in range(count + 1)]
    return edges, find_ticks(edges[0], edges[-1], 6)


def count_shares(side: Side, edges: Sequence[float]) -> list[float]:
    """Share of the values between each two borders."""
    width, last = edges[1] - edges[0], len(edges) - 2
    counts = [0] * (last + 1)
    for value in side.values:
        counts[min(last, max(0, math.floor((value - edges[0]) / width + 1e-9)))] += 1
    return [count / len(side.values) for count in counts]


# -- drawing -----------------------------------------------------------------------------------------------------------


def draw_histogram(title: str, caption: str, sides: Sequence[Side]) -> Figure:
    """A bar per side in every bin. Each bar says its range and share; the whole says the medians."""
    edges, values = find_edges(sides)
    shares = [count_shares(side, edges) for side in sides]
    top = next((top for top in (0.1, 0.25, 0.5, 1.0) if max(map(max, shares)) <= top), 1.0)
    scale = Scale(edges[0], edges[-1], 0.0, top)
    width = min((scale.x(edges[1]) - scale.x(edges[0])) / len(sides), WIDEST)
    marks = [*draw_grid(scale, [(tick, write_value(tick, share=True)) for tick in find_ticks(0.0, top, 5)])]
    marks += draw_numbers(scale, [(value, write_value(value)) for value in values])
    for index, side in enumerate(sides):
        for share, (low, high) in zip(shares[index], pairwise(edges), strict=True):
            if share:
                left, y = (scale.x(low) + scale.x(high)) / 2 + (index - 1) * width, scale.y(share)
                place = {"x": left + 0.5, "y": y, "width": max(1.0, width - 1), "height": scale.bottom - y}
                told = f"{side.label}: {100 * share:.1f} % from {low:.4g} to {high:.4g}"
                marks.append(make_mark("rect", f"area c{index}", told, **place))
    medians = "; ".join(f"{side.label}: median {median(side.values):.4g} of {len(side.values)}" for side in sides)
    where = ("left", "right") if len(sides) == 2 else ("",) * len(sides)  # not by colour alone
    legend = [
        (index, f"{side.label} ({word})" if word else side.label)
        for index, (side, word) in enumerate(zip(sides, where, strict=True))
    ]
    told = f"{caption} {medians[0].upper()}{medians[1:]}."
    heads = ["from", "to", *(side.label for side in sides)]
    rows = [[low, high, *found] for (low, high), *found in zip(pairwise(edges), *shares, strict=True)]
    return Figure(title, told, f"{title}, {medians}", marks, legend, numbers=(heads, rows))
