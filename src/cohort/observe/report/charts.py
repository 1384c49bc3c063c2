"""Line and stacked-area charts as SVG text. Colours are CSS classes, so that one drawing serves light and dark."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 28
MAX_POINTS = 400
"""More points than this are averaged in buckets: a chart is 500 pixels wide."""

MAX_AREA_POINTS = 80
"""Areas of every single step are noise; the mean of a few steps shows which stage costs what."""

COLOURS = 8
"""Classes c0 to c7 of the stylesheet."""

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Series:
    """One line: (step, value) points, optionally with an interval per point."""

    label: str
    points: Points
    intervals: Sequence[tuple[float, float]] = ()
    marks: bool = False
    """Draw a dot at every point: for values that exist at few steps."""


@dataclass(frozen=True)
class Chart:
    title: str
    caption: str
    series: tuple[Series, ...]
    share: bool = False
    """Values lie in [0, 1] and are written as percentages."""
    stacked: bool = False
    unit: str = ""
    smooth: bool = True

    @property
    def empty(self) -> bool:
        return not any(series.points for series in self.series)


@dataclass(frozen=True)
class Scale:
    """Data to pixels."""

    x0: float
    x1: float
    y0: float
    y1: float

    def x(self, value: float) -> float:
        return LEFT + (value - self.x0) / (self.x1 - self.x0) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (value - self.y0) / (self.y1 - self.y0) * (HEIGHT - TOP - BOTTOM)

    def place(self, points: Points) -> str:
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)


def figure(chart: Chart) -> str:
    """The chart as an HTML figure with title, legend and caption; the hover script reads data-chart."""
    # A line keeps its colour where another has nothing to show: in every chart of a page it stands for the same thing.
    colours = [place for place, series in enumerate(chart.series) if series.points]
    shown = tuple(chart.series[place] for place in colours)
    layers = stack(shown) if chart.stacked else [thin(series.points) for series in shown]
    scale = fit(chart, shown, layers)
    body = axes(chart, scale)
    body += (
        areas(layers, scale)
        if chart.stacked
        else "".join(line(i, s, chart, scale) for i, s in zip(colours, shown, strict=True))
    )
    colours = list(range(len(shown))) if chart.stacked else colours
    legend = "".join(
        f'<span><i class="c{i % COLOURS}"></i>{escape(series.label)}</span>' for i, series in zip(colours, shown, strict=True)
    )
    described = f"{chart.title}: " + ", ".join(f"{s.label} ends at {written(s.points[-1][1], chart)}" for s in shown)
    return (
        f'<figure class="card chart" data-chart="{escape(hover_data(chart, shown, scale), quote=True)}">'
        f'<figcaption><h3>{escape(chart.title)}</h3><div class="legend">{legend}</div></figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(described, quote=True)}">{body}'
        '<line class="cursor" y1="12" y2="202"/></svg>'
        f'<p class="caption">{escape(chart.caption)}</p></figure>'
    )


def fit(chart: Chart, shown: Sequence[Series], layers: Sequence[Points]) -> Scale:
    xs = [x for points in layers for x, _ in points]
    ys = [y for points in layers for _, y in points] + [y for s in shown for pair in s.intervals for y in pair]
    x0, x1 = min(xs), max(xs)
    if x0 == x1:
        x0, x1 = x0 - 0.5, x1 + 0.5
    if chart.share:  # from 0 to a round share: small shares stay readable, and large ones are not magnified
        return Scale(x0, x1, 0.0, next((top for top in (0.05, 0.1, 0.25, 0.5) if max(ys) <= top), 1.0))
    y0, y1 = min(0.0, *ys), max(0.0, *ys)
    if y0 == y1:
        y1 = y0 + 1.0
    room = 0.06 * (y1 - y0)
    return Scale(x0, x1, y0 - (room if y0 < 0 else 0), y1 + room)


def axes(chart: Chart, scale: Scale) -> str:
    parts = []
    for tick in ticks(scale.y0, scale.y1, 6):
        y = scale.y(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 3.5:.1f}" text-anchor="end">{written(tick, chart)}</text>')
    for tick in ticks(scale.x0, scale.x1, 6):
        if tick == int(tick):
            x = scale.x(tick)
            parts.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 9}" text-anchor="middle">{tick:.0f}</text>')
    return "".join(parts)


def line(index: int, series: Series, chart: Chart, scale: Scale) -> str:
    colour = f"c{index % COLOURS}"
    parts = []
    if series.intervals:
        upper = [(x, high) for (x, _), (_, high) in zip(series.points, series.intervals, strict=True)]
        lower = [(x, low) for (x, _), (low, _) in zip(series.points, series.intervals, strict=True)]
        parts.append(f'<polygon class="band {colour}" points="{scale.place(upper + lower[::-1])}"/>')
        parts += [
            f'<line class="whisker {colour}" x1="{scale.x(x):.1f}" x2="{scale.x(x):.1f}" y1="{scale.y(a):.1f}" y2="{scale.y(b):.1f}"/>'
            for (x, a), (_, b) in zip(lower, upper, strict=True)
        ]
    points = thin(series.points)
    if chart.smooth and not series.marks and len(points) >= 30:
        parts.append(f'<polyline class="line raw {colour}" points="{scale.place(points)}"/>')
        points = smoothed(points, max(3, len(points) // 25))
    parts.append(f'<polyline class="line {colour}" points="{scale.place(points)}"/>')
    if series.marks or len(points) == 1:
        parts += [f'<circle class="dot {colour}" cx="{scale.x(x):.1f}" cy="{scale.y(y):.1f}" r="3.6"/>' for x, y in points]
    return "".join(parts)


def areas(layers: Sequence[Points], scale: Scale) -> str:
    """layers[i] is the running total up to series i; each area lies between two of them."""
    parts = []
    floor: Points = [(x, 0.0) for x, _ in layers[0]] if layers else []
    for index, layer in enumerate(layers):
        parts.append(f'<polygon class="area c{index % COLOURS}" points="{scale.place([*layer, *reversed(floor)])}"/>')
        floor = layer
    return "".join(parts)


def stack(shown: Sequence[Series]) -> list[Points]:
    """Running totals over the union of steps; a stage that did not happen in a step took 0 there."""
    steps: list[float] = sorted({x for series in shown for x, _ in series.points})
    totals = dict.fromkeys(steps, 0.0)
    layers: list[Points] = []
    for series in shown:
        for x, y in series.points:
            totals[x] += y
        layers.append(thin([(x, totals[x]) for x in steps], MAX_AREA_POINTS))
    return layers


def thin(points: Points, limit: int = MAX_POINTS) -> Points:
    """At most `limit` points: means over buckets of equal size. The first and the last point stay as they are."""
    if len(points) <= limit:
        return list(points)
    size = math.ceil((len(points) - 2) / (limit - 2))
    middle = [points[i : min(i + size, len(points) - 1)] for i in range(1, len(points) - 1, size)]
    means = [(sum(x for x, _ in bucket) / len(bucket), sum(y for _, y in bucket) / len(bucket)) for bucket in middle]
    return [points[0], *means, points[-1]]


def smoothed(points: Points, window: int) -> Points:
    """Trailing mean: a point never shows what happened after it."""
    total, result = 0.0, []
    for i, (x, y) in enumerate(points):
        total += y - (points[i - window][1] if i >= window else 0.0)
        result.append((x, total / min(i + 1, window)))
    return result


def ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten) inside [low, high]."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def written(value: float, chart: Chart) -> str:
    if chart.share:
        return f"{100 * value:.0f} %" if abs(100 * value - round(100 * value)) < 1e-9 else f"{100 * value:.1f} %"
    size = abs(value)
    if size >= 10_000:
        return f"{value / 1000:.0f}k"
    return f"{value:.1e}".replace("e-0", "e-") if 0 < size < 0.001 else f"{value:.4g}"


def hover_data(chart: Chart, shown: Sequence[Series], scale: Scale) -> str:
    """What the tooltip needs: the x range, and per series its thinned points."""
    return json.dumps(
        {
            "x": [scale.x0, scale.x1],
            "plot": [LEFT, WIDTH - RIGHT, WIDTH],
            "share": chart.share,
            "unit": chart.unit,
            "series": [
                {"label": s.label, "points": [[round(x, 1), float(f"{y:.5g}")] for x, y in thin(s.points)]} for s in shown
            ],
        },
        separators=(",", ":"),
        allow_nan=False,
    )
