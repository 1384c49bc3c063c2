"""Tables and the picture of benchmarks/smollm2.py, from its JSON files: `python benchmarks/smollm2_table.py OUT`.

Writes OUT/tables.md and, where TRL runs exist, OUT/trl-cpu.svg and OUT/trl-gpu.svg. Intervals are those of the runs' own evaluations (over
problems). A level is reached where the line between two evaluations crosses it; its cost is the number of steps until there times the median
step of a run that had the machine to itself, evaluations not counted.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from speed_plot import COLOURS, svg, text

NUMBERS = ("pass@1", "pass@4", "pass@16", "pass@64", "greedy", "maj@8")


@dataclass(frozen=True)
class Duel:
    """Runs of both sides with evaluations on the way, and the stages whose steps are timed."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    clocks: tuple[str, ...]
    """Ours and theirs; without theirs, only the run of `theirs` with the best last evaluation counts, and times its own steps."""
    label: str
    clock: str
    unit: str


DUELS = {
    "trl-cpu": Duel(
        ("json-looks",), ("trl-json-0-3e-05", "trl-json-0-6e-05"), ("json-looks",), "new_rows", "cpu", "CPU seconds"
    ),
    "trl-gpu": Duel(
        ("duel-0", "duel-1", "duel-2"),
        ("trl-math-0", "trl-math-1", "trl-math-2"),
        ("clock", "trl-clock"),
        "one_operation",
        "wall",
        "seconds",
    ),
}


def write_number(number: Mapping[str, Any] | None) -> str:
    if not number or number.get("value") is None:
        return ""
    value = f"{100 * number['value']:.1f}"
    return value if number.get("low") is None else f"{value} [{100 * number['low']:.1f}, {100 * number['high']:.1f}]"


def tabulate(results: Mapping[str, Any]) -> list[str]:
    """One row for each stage and set: before and after, in percent."""
    kept = [
        key for key in NUMBERS if any(key in one["before"] for run in results.values() for one in run["eval"]["sets"].values())
    ]
    lines = ["| run | set | " + " | ".join(kept) + " |", "|---" * (2 + len(kept)) + "|"]
    for name, run in results.items():
        for label, one in run["eval"]["sets"].items():
            cells = [
                " → ".join(filter(None, (write_number(one[when].get(key)) for when in ("before", "after")))) for key in kept
            ]
            lines.append(f"| {name} | {label} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "| run | learning rate | seconds | CPU seconds | reward of the first and last quarter of steps | tokens per completion | entropy |",
    ]
    lines.append("|---" * 7 + "|")
    for name, run in results.items():
        metrics, quarter = run["metrics"], max(1, len(run["metrics"]["reward/mean"]) // 4)
        ends = [" → ".join(f"{fmean(part):.3g}" for part in (values[:quarter], values[-quarter:]))
                for values in (metrics[key] for key in ("reward/mean", "rollout/length_mean", "loss/entropy")) if None not in values]  # fmt: skip
        rate = run["learning_rate"] or "the recipe's"
        lines.append(f"| {name} | {rate} | {run['seconds']:.0f} | {run['cpu']:.0f} | " + " | ".join(ends) + " |")
    return lines


def read_curve(run: Mapping[str, Any], label: str, seconds: float, start: float | None = None) -> list[tuple[float, float]]:
    """(seconds of training, pass@1 on one set) at every evaluation. A peer's run was not evaluated before step 1: `start` stands there."""
    points = [(look["step"] * seconds, fmean(tries.count("1") / len(tries) for tries in look["per_problem"][label]["success"]))
              for look in run["looks"]]  # fmt: skip
    return points if start is None else [(0.0, start), *points]


def find_crossing(curve: Sequence[tuple[float, float]], level: float) -> float:
    """Where a curve that reaches `level` does so first, on the straight line between two evaluations."""
    for (x, value), (later, reached) in pairwise(curve):
        if value < level <= reached:
            return x + (later - x) * (level - value) / (reached - value)
    raise ValueError(f"no evaluation reaches {level}")


def draw(curves: Mapping[str, Sequence[Sequence[tuple[float, float]]]], unit: str) -> str:
    """One line for each seed; log time, because a peer may take ten times as long."""
    width, height, left, bottom, top = 720, 370, 56, 40, 70
    points = [(x, y) for lines in curves.values() for line in lines for x, y in line if x > 0]
    first, last = math.log(min(x for x, _ in points)), math.log(max(x for x, _ in points))
    ceiling = math.ceil(10 * max(y for _, y in points)) / 10

    def place(x: float, y: float) -> tuple[float, float]:
        return left + (math.log(x) - first) / (last - first) * (width - left - 20), height - bottom - y / ceiling * (
            height - bottom - top
        )

    parts = [text(0, 14, f"held-out pass@1 against {unit} of training, one line a seed", weight="600")]
    ticks = [mantissa * 10**power for power in range(5) for mantissa in (1, 2, 5)]
    for tick in (one for one in ticks if first <= math.log(one) <= last):
        parts.append(text(place(tick, 0)[0], height - 18, f"{tick} s", anchor="middle", size=11))
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(
            text(
                left - 6,
                place(math.exp(first), share * ceiling)[1] + 4,
                f"{100 * share * ceiling:.3g} %",
                anchor="end",
                size=11,
            )
        )
    for row, (name, lines) in enumerate(curves.items()):
        colour = COLOURS["cohort" if name == "Cohort" else "peer"]
        for line in lines:
            joined = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in line if x > 0)
            parts.append(f"<polyline fill='none' stroke='{colour}' stroke-width='2' points='{joined}'/>")
        parts += [f"<rect x='{width - 130}' y='{24 + 18 * row}' width='12' height='12' fill='{colour}'/>", text(width - 112, 35 + 18 * row, name)]  # fmt: skip
    return svg(width, height, parts)


def compare(results: Mapping[str, Any], duel: Duel) -> tuple[list[str], str] | None:
    """Seconds to three levels between the start and the best that every run reaches, and a picture; None where a side is missing."""
    ours, theirs = ([results[name] for name in names if name in results] for names in (duel.ours, duel.theirs))
    clocks = [results.get(name) for name in duel.clocks]
    if not ours or not theirs or None in clocks:
        return None
    if len(clocks) == 1:
        theirs = [max(theirs, key=lambda run: read_curve(run, duel.label, 1)[-1][1])]
        clocks += theirs
    mine, other = (clock["clock"][duel.clock] for clock in clocks)
    own = [read_curve(run, duel.label, mine) for run in ours]
    start = fmean(curve[0][1] for curve in own)
    curves = {"Cohort": own, f"TRL {theirs[0]['version']}": [read_curve(run, duel.label, other, start) for run in theirs]}
    best = min(max(y for _, y in curve) for lines in curves.values() for curve in lines)
    rate = theirs[0]["learning_rate"]
    lines = [f"A step: TRL {other:.2f} {duel.unit} (rate {rate:g}), Cohort {mine:.2f}: {other / mine:.1f}x. {theirs[0]['device']}.", "",
             f"| held-out pass@1, {duel.label} | Cohort, {duel.unit} | TRL, {duel.unit} | ratio of the medians |", "|---|---|---|---|"]  # fmt: skip
    for share in (1 / 3, 2 / 3, 1):
        level = start + share * (best - start)
        cost = [sorted(find_crossing(curve, level) for curve in found) for found in curves.values()]
        cells = [f"{median(one):.0f}" + (f" [{one[0]:.0f}, {one[-1]:.0f}]" if len(one) > 1 else "") for one in cost]
        lines.append(f"| {100 * level:.1f} % | {' | '.join(cells)} | {median(cost[1]) / median(cost[0]):.1f} |")
    return lines, draw(curves, duel.unit)


def main(out: Path) -> None:
    results = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted((out / "results").glob("*.json"))}
    lines = tabulate({name: run for name, run in results.items() if (run.get("eval") or {}).get("sets")})
    for name, duel in DUELS.items():
        if found := compare(results, duel):
            lines += ["", *found[0]]
            (out / f"{name}.svg").write_text(found[1], encoding="utf-8")
    (out / "tables.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
