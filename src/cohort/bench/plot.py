"""Drawings of results as SVG files that stand alone: bars of one benchmark, and log-log lines of cost curves. No dependency.

Numbers are read from the JSON document alone, so a drawing can be made again at any time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from cohort.bench.peers import NAMES

WIDTH, ROW, GAP, LABEL, VALUE = 760, 24, 26, 210, 150
COLOURS = {"cohort": "#2f6fde", "peer": "#9aa4b2", "expected": "#c98500"}
FONT = "font-family='system-ui, sans-serif' font-size='13' fill='#5b6573'"
PANEL_WIDTH, PANEL_HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 380, 260, 58, 40, 42, 14


def bars(document: Mapping[str, Any]) -> str:
    """Tokens per second of every engine, stage by stage; ours in colour."""
    rows: list[str] = []
    y = 18
    for stage, engines in document["stages"].items():
        rows.append(text(0, y, f"{stage}: tokens per second", weight="600"))
        y += 10
        rates = {name: figures["derived"]["tokens_per_second"] for name, figures in engines.items()}
        labels = {name: NAMES[name] for name in rates}
        for quoted in document["quoted"]:
            if quoted["stage"] == stage and quoted["tokens_per_second"]:
                rates[quoted["label"]] = quoted["tokens_per_second"]
                labels[quoted["label"]] = f"{quoted['label']} †"
        longest = max(rates.values())
        for name, rate in rates.items():
            width = (WIDTH - LABEL - VALUE) * rate / longest
            colour = COLOURS["cohort" if name == "cohort" else "peer"]
            rows.append(text(LABEL - 8, y + 15, labels[name][:32], anchor="end"))
            rows.append(f"<rect x='{LABEL}' y='{y + 3}' width='{max(1.0, width):.1f}' height='{ROW - 8}' fill='{colour}'/>")
            rows.append(text(LABEL + width + 6, y + 15, f"{rate:,.0f}"))
            y += ROW
        y += GAP
    return svg(WIDTH, y, rows)


def curves(document: Mapping[str, Any]) -> str:
    """A panel for each curve: measured points, and a line of the expected slope through their middle."""
    panels = [curve for curve in document["curves"] if len(curve["points"]) >= 2]
    columns = 2
    parts = []
    for number, curve in enumerate(panels):
        x, y = number % columns * PANEL_WIDTH, number // columns * PANEL_HEIGHT
        parts.append(f"<g transform='translate({x},{y})'>{panel(curve)}</g>")
    return svg(columns * PANEL_WIDTH, math.ceil(len(panels) / columns) * PANEL_HEIGHT, parts)


def panel(curve: Mapping[str, Any]) -> str:
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
    parts = [text(4, 16, curve["title"], weight="600"), text(4, 32, slope)]
    parts.append(line(expected, COLOURS["expected"], "stroke-dasharray='5 4'"))
    parts.append(line(logs, COLOURS["cohort"]))
    for (x, y), (log_x, log_y) in zip(points, logs, strict=True):
        a, b = place(log_x, log_y)
        parts.append(
            f"<circle cx='{a:.1f}' cy='{b:.1f}' r='3.5' fill='{COLOURS['cohort']}'><title>{x:g}: {y:.4g}</title></circle>"
        )
        parts.append(text(a, PANEL_HEIGHT - BOTTOM + 16, f"{x:g}", anchor="middle", size=11))
    for y in (logs[0][1], logs[-1][1]):
        parts.append(text(LEFT - 8, place(0, y)[1] + 4, f"{math.exp(y):.3g}", anchor="end", size=11))
    parts.append(text((LEFT + PANEL_WIDTH) / 2, PANEL_HEIGHT - 8, curve["axis"], anchor="middle", size=11))
    return "".join(parts)


def text(x: float, y: float, words: str, anchor: str = "start", weight: str = "400", size: int = 13) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' font-weight='{weight}' font-size='{size}'>{escape(words)}</text>"
    )


def svg(width: int, height: int, parts: Sequence[str]) -> str:
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' height='{height}'>"
    return f"{head}<g {FONT}>{''.join(parts)}</g></svg>\n"
