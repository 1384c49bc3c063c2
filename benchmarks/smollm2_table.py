"""Tables and the picture of benchmarks/smollm2.py, from its JSON files: `python benchmarks/smollm2_table.py OUT`.

Writes OUT/tables.md and, where a TRL run exists, OUT/trl.svg. Intervals are those of the runs' own evaluations (over problems); a level
is reached where the line between two evaluations crosses it, and its cost is the CPU seconds of the steps until there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from speed_plot import COLOURS, svg, text

NUMBERS = ("pass@1", "pass@4", "pass@16", "pass@64", "greedy", "maj@8")
SET = "new_rows"


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


def read_curve(run: Mapping[str, Any]) -> list[tuple[float, float]]:
    """(CPU seconds of training, pass@1 on the trained kinds) at every evaluation."""
    seconds = run["clock"]["cpu"]
    return [(look["step"] * seconds, fmean(len([1 for one in tries if one == "1"]) / len(tries) for tries in look["per_problem"][SET]["success"]))
            for look in run["looks"]]  # fmt: skip


def find_crossing(curve: Sequence[tuple[float, float]], level: float) -> float | None:
    for (x, value), (later, reached) in pairwise(curve):
        if value < level <= reached:
            return x + (later - x) * (level - value) / (reached - value)
    return None


def draw(curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    width, height, left, bottom, top = 720, 340, 56, 40, 40
    right = max(x for points in curves.values() for x, _ in points)

    def place(x: float, y: float) -> tuple[float, float]:
        return left + x / right * (width - left - 20), height - bottom - y * (height - bottom - top)

    parts = [text(0, 14, "held-out pass@1 against CPU seconds of training, evaluations not counted", weight="600")]
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(text(place(share * right, 0)[0], height - 18, f"{share * right:.0f} s", anchor="middle", size=11))
        parts.append(text(left - 6, place(0, share)[1] + 4, f"{100 * share:.0f} %", anchor="end", size=11))
    for row, (name, points) in enumerate(curves.items()):
        colour = COLOURS["peer" if name.startswith("TRL") else "cohort"]
        line = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in points)
        parts += [f"<polyline fill='none' stroke='{colour}' stroke-width='2' points='{line}'/>",
                  f"<rect x='{width - 130}' y='{24 + 18 * row}' width='12' height='12' fill='{colour}'/>", text(width - 112, 35 + 18 * row, name)]  # fmt: skip
    return svg(width, height, parts)


def main(out: Path) -> None:
    results = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted((out / "results").glob("*.json"))}
    runs = {name: run for name, run in results.items() if (run.get("eval") or {}).get("sets")}
    lines = tabulate(runs)
    ours, theirs = results.get("json-looks"), results.get("trl-json-0")
    if ours and theirs:
        start = read_curve(ours)[0][1]
        curves = {"Cohort": read_curve(ours), "TRL 1.16": [(0.0, start), *read_curve(theirs)]}
        (out / "trl.svg").write_text(draw(curves), encoding="utf-8")
        best = min(max(value for _, value in curve) for curve in curves.values())
        lines += ["", "| held-out pass@1 | Cohort, CPU s | TRL, CPU s | ratio |", "|---|---|---|---|"]
        for share in (1 / 3, 2 / 3, 0.999):
            level = start + share * (best - start)
            mine, other = (find_crossing(curve, level) for curve in curves.values())
            ratio = f"{other / mine:.1f}" if mine and other else ""
            lines.append(f"| {100 * level:.1f} % | {mine or 0:.0f} | {other or 0:.0f} | {ratio} |")
        steps = [median(step["cpu"] for step in theirs["steps"][1:]), ours["clock"]["cpu"]]
        lines += ["", f"A step: TRL {steps[0]:.1f} CPU s, Cohort {steps[1]:.1f}; {theirs['device']}."]
    (out / "tables.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
