"""Draws results as self-contained SVG files: bars of one benchmark, and log-log lines of cost curves. No dependencies.

A drawing needs only the JSON document:

    python benchmarks/speed_plot.py RESULT.json > DRAWING.svg
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from speed_peers import NAMES

BARS, ROW, GAP, CHARACTER, VALUE = 400, 24, 26, 7, 150
COLOURS = {"cohort": "#2f6fde", "peer": "#9aa4b2", "expected": "#c98500"}
FONT = "font-family='system-ui, sans-serif' font-size='13' fill='#5b6573'"
PANEL_WIDTH, PANEL_HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 380, 276, 58, 40, 58, 24
LINE = 12
"""Height of small text: labels that are nearer would cover each other."""


def draw_bars(document: Mapping[str, Any]) -> str:
    """Tokens per second of every engine, stage by stage; ours in colour. One scale for all, since the unit is one."""
    stages = {stage: rates_of(stage, document) for stage in document["stages"]}
    rates = [rate for found in stages.values() for rate in found.values()]
    left = 20 + CHARACTER * max(len(label) for found in stages.values() for label in found)
    rows = [text(0, 14, write_caption(document), size=11)]
    y = 42
    for stage, found in stages.items():
        rows.append(text(0, y, f"{stage}: tokens per second", weight="600"))
        y += 10
        for label, rate in found.items():
            width = BARS * rate / max(rates)
            colour = COLOURS["cohort" if label == NAMES["cohort"] else "peer"]
            rows.append(text(left - 8, y + 15, label, anchor="end"))
            rows.append(f"<rect x='{left}' y='{y + 3}' width='{max(1.0, width):.1f}' height='{ROW - 8}' fill='{colour}'/>")
            rows.append(text(left + width + 6, y + 15, f"{rate:,.0f}"))
            y += ROW
        y += GAP
    if document.get("quoted", []):
        rows.append(text(0, y, "† measured earlier on the same kind of machine, not in this run", size=11))
        y += LINE
    return svg(max(left + BARS + VALUE, CHARACTER * len(write_caption(document))), y, rows)


def rates_of(stage: str, document: Mapping[str, Any]) -> dict[str, float]:
    """Label -> tokens per second: what was measured, then what is quoted (where it is seconds: over the same tokens)."""
    rates = {NAMES[name]: figures["derived"]["tokens_per_second"] for name, figures in document["stages"][stage].items()}
    tokens = document["settings"]["workload"]["tokens"]
    for quoted in document.get("quoted", []):
        if quoted["stage"] == stage:
            rates[f"{quoted['label']} †"] = quoted["tokens_per_second"] or tokens / quoted["seconds"]
    return rates


def write_caption(document: Mapping[str, Any]) -> str:
    """What a number means nothing without: machine, model, work, turns."""
    settings, machine = document["settings"], document["machine"]
    work, turns = settings["workload"], settings["repeats"] * settings.get("rounds", 1)
    where = machine["gpu"] if settings["device"].startswith("cuda") else f"{machine['cpu']}, threads: {machine['threads']}"
    lengths = f"{work['new']} tokens" if work["lengths"] == "fixed" else f"at most {work['new']} tokens"
    sizes = f"{work['prompts']} x {work['group']} completions of {lengths}"
    return f"{settings['shape']['name']}, {sizes}, on {where}; median of {turns}, {document['made']}"


def draw_curves(document: Mapping[str, Any]) -> str:
    """A panel for each curve: measured points, and a line of the expected slope through their middle."""
    panels = [curve for curve in document["curves"] if len(curve["points"]) >= 2]
    columns = 2
    parts = []
    for number, curve in enumerate(panels):
        x, y = number % columns * PANEL_WIDTH, number // columns * PANEL_HEIGHT
        parts.append(f"<g transform='translate({x},{y})'>{draw_panel(curve)}</g>")
    return svg(columns * PANEL_WIDTH, math.ceil(len(panels) / columns) * PANEL_HEIGHT, parts)


def draw_panel(curve: Mapping[str, Any]) -> str:
    points = [(float(x), float(y)) for x, y in curve["points"]]
    logs = [(math.log(x), math.log(y)) for x, y in points]
    middle_x, middle_y = (sum(values) / len(logs) for values in zip(*logs, strict=True))
    expected = [(x, middle_y + curve["expected"] * (x - middle_x)) for x, _ in (logs[0], logs[-1])]
    everything = [y for _, y in (*logs, *expected)]
    low, high = min(everything), max(everything)
    room = max(0.35, 0.1 * (high - low))  # a flat curve is drawn flat, and not as magnified noise
    low, high = low - room, high + room

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - logs[0][0]) / (logs[-1][0] - logs[0][0])
        up = (y - low) / (high - low)
        return LEFT + across * (PANEL_WIDTH - LEFT - RIGHT), PANEL_HEIGHT - BOTTOM - up * (PANEL_HEIGHT - BOTTOM - TOP)

    def line(values: Sequence[tuple[float, float]], colour: str, more: str = "") -> str:
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in (place(x, y) for x, y in values))
        return f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2' {more}/>"

    slope = f"slope {curve['slope']:.2f}, expected {curve['expected']:.2f}"
    marks = text(4, 16, curve["title"], weight="600") + text(4, 32, slope) + text(4, 46, "dashed: the expected slope", size=11)
    parts = [marks]
    parts.append(line(expected, COLOURS["expected"], "stroke-dasharray='5 4'"))
    parts.append(line(logs, COLOURS["cohort"]))
    for (x, y), (log_x, log_y) in zip(points, logs, strict=True):
        a, b = place(log_x, log_y)
        parts.append(
            f"<circle cx='{a:.1f}' cy='{b:.1f}' r='3.5' fill='{COLOURS['cohort']}'><title>{x:g}: {y:.4g}</title></circle>"
        )
        parts.append(text(a, PANEL_HEIGHT - BOTTOM + 16, shorten_number(x), anchor="middle", size=11))
    first, last = (place(0, y)[1] for y in (logs[0][1], logs[-1][1]))
    parts.append(text(LEFT - 8, first + 4, shorten_number(points[0][1]), anchor="end", size=11))
    if abs(first - last) >= LINE:
        parts.append(text(LEFT - 8, last + 4, shorten_number(points[-1][1]), anchor="end", size=11))
    parts.append(text((LEFT + PANEL_WIDTH) / 2, PANEL_HEIGHT - 8, curve["axis"], anchor="middle", size=11))
    return "".join(parts)


def shorten_number(number: float) -> str:
    """Three digits, and large numbers with a letter: an axis has no room for more."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= size:
            return f"{number / (1e3 if letter == 'k' else size):.3g}{letter}"
    return f"{number:.3g}" if number < 1000 else f"{number:.0f}"


def text(x: float, y: float, words: str, anchor: str = "start", weight: str = "400", size: int = 13) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-weight='{weight}' font-size='{size}'>{escape(words)}</text>"
    )


def svg(width: int, height: int, parts: Sequence[str]) -> str:
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}'>"
    return f"{head}<g {FONT}>{''.join(parts)}</g></svg>\n"


def main(file: str) -> int:
    document = json.loads(Path(file).read_text(encoding="utf-8"))
    sys.stdout.write(draw_curves(document) if "curves" in document else draw_bars(document))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
