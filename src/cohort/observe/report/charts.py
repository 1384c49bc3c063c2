"""Line and stacked-area charts as marks of an SVG. Colours are CSS classes, so that one drawing serves light and dark."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 560, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 28
MAX_POINTS = 400
"""More points than this are averaged in buckets: a chart is 500 pixels wide."""

MAX_AREA_POINTS = 80
"""Areas of every single step are noise; the mean of a few steps shows which stage costs what."""

COLOURS = 8
"""Classes c0 to c7 of the stylesheet."""

Points = Sequence[tuple[float, float]]
Mark = tuple[str, dict[str, object], str]
"""An element of an SVG: its tag, its attributes, and the text in it (of a shape: what is told of it under the pointer)."""


@dataclass(frozen=True)
class Series:
    """One line: (step, value) points, optionally with an interval per point."""

    label: str
    points: Points
    intervals: Sequence[tuple[float, float]] = ()
    marks: bool = False
    """Draw a dot at every point: for values that exist at few steps."""
    colour: int | None = None
    """By its place in the chart unless it is named."""


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
class Figure:
    """A drawing with what stands around it, as the template takes it."""

    title: str
    caption: str
    label: str
    """All that it shows, in words."""
    marks: Sequence[Mark]
    legend: Sequence[tuple[int, str]] = ()
    hover: str = ""
    """What the script needs to show values under the pointer."""
    style: str = "chart"
    width: int = WIDTH
    height: int = HEIGHT


@dataclass(frozen=True)
class Scale:
    """Data to pixels."""

    x0: float
    x1: float
    y0: float
    y1: float
    left: float = LEFT
    right: float = WIDTH - RIGHT
    top: float = TOP
    bottom: float = HEIGHT - BOTTOM

    def x(self, value: float) -> float:
        return self.left + (value - self.x0) / (self.x1 - self.x0) * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - (value - self.y0) / (self.y1 - self.y0) * (self.bottom - self.top)

    def place(self, points: Points) -> str:
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)


def make_mark(tag: str, style: str, text: str = "", **attributes: float | str) -> Mark:
    """Numbers are pixels, and are written to a tenth; an underscore in a name is a dash."""
    written = {
        name.replace("_", "-"): f"{value:.1f}" if isinstance(value, float) else value for name, value in attributes.items()
    }
    return tag, {"class": style, **written}, text


def draw_chart(chart: Chart) -> Figure:
    """The chart with its legend; the hover script reads what is kept of its points."""
    # A line keeps its colour where another has nothing to show: in every chart of a page it stands for the same thing.
    places = [place for place, series in enumerate(chart.series) if series.points]
    shown = tuple(chart.series[place] for place in places)
    colours = [series.colour if series.colour is not None else place for place, series in zip(places, shown, strict=True)]
    layers = stack_series(shown) if chart.stacked else [thin_points(series.points) for series in shown]
    scale = fit_scale(chart, shown, layers)
    marks = [*draw_grid(scale, [(tick, write_value(tick, chart.share)) for tick in find_ticks(scale.y0, scale.y1, 6)])]
    steps = [(tick, f"{tick:.0f}") for tick in find_ticks(scale.x0, scale.x1, 6) if tick == int(tick)]
    marks += [*draw_numbers(scale, steps), *(draw_areas(layers, scale) if chart.stacked else ())]
    if chart.stacked:
        colours = list(range(len(shown)))
    else:
        marks += [mark for colour, one in zip(colours, shown, strict=True) for mark in draw_line(colour, one, chart, scale)]
    marks.append(make_mark("line", "cursor", y1=TOP, y2=HEIGHT - BOTTOM))
    ends = ", ".join(f"{one.label} ends at {write_value(one.points[-1][1], chart.share)}" for one in shown)
    legend = [(colour % COLOURS, one.label) for colour, one in zip(colours, shown, strict=True)]
    return Figure(chart.title, chart.caption, f"{chart.title}: {ends}", marks, legend, dump_hover_data(chart, shown, scale))


def fit_scale(chart: Chart, shown: Sequence[Series], layers: Sequence[Points]) -> Scale:
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


def draw_grid(scale: Scale, ticks: Iterable[tuple[float, str]]) -> Iterator[Mark]:
    """Lines across the drawing, with their values at the left."""
    for tick, text in ticks:
        y = scale.y(tick)
        yield make_mark("line", "grid", x1=scale.left, x2=scale.right, y1=y, y2=y)
        yield make_mark("text", "tick", text, x=scale.left - 8, y=y + 3.5, text_anchor="end")


def draw_numbers(scale: Scale, ticks: Iterable[tuple[float, str]]) -> Iterator[Mark]:
    """Values below the drawing."""
    for tick, text in ticks:
        yield make_mark("text", "tick", text, x=scale.x(tick), y=scale.bottom + 19, text_anchor="middle")


def draw_line(colour: int, series: Series, chart: Chart, scale: Scale) -> Iterator[Mark]:
    style = f"c{colour % COLOURS}"
    if series.intervals:
        upper = [(x, high) for (x, _), (_, high) in zip(series.points, series.intervals, strict=True)]
        lower = [(x, low) for (x, _), (low, _) in zip(series.points, series.intervals, strict=True)]
        yield make_mark("polygon", f"band {style}", points=scale.place(upper + lower[::-1]))
        for (x, a), (_, b) in zip(lower, upper, strict=True):
            yield make_mark("line", f"whisker {style}", x1=scale.x(x), x2=scale.x(x), y1=scale.y(a), y2=scale.y(b))
    points = thin_points(series.points)
    if chart.smooth and not series.marks and len(points) >= 30:
        yield make_mark("polyline", f"line raw {style}", points=scale.place(points))
        points = smooth_points(points, max(3, len(points) // 25))
    yield make_mark("polyline", f"line {style}", points=scale.place(points))
    if series.marks or len(points) == 1:
        for x, y in points:
            yield make_mark("circle", f"dot {style}", cx=scale.x(x), cy=scale.y(y), r=3.6)


def draw_areas(layers: Sequence[Points], scale: Scale) -> Iterator[Mark]:
    """layers[i] is the running total up to series i; each area lies between two of them."""
    floor: Points = [(x, 0.0) for x, _ in layers[0]] if layers else []
    for index, layer in enumerate(layers):
        yield make_mark("polygon", f"area c{index % COLOURS}", points=scale.place([*layer, *reversed(floor)]))
        floor = layer


def stack_series(shown: Sequence[Series]) -> list[Points]:
    """Running totals over the union of steps; a stage that did not happen in a step took 0 there."""
    steps: list[float] = sorted({x for series in shown for x, _ in series.points})
    totals = dict.fromkeys(steps, 0.0)
    layers: list[Points] = []
    for series in shown:
        for x, y in series.points:
            totals[x] += y
        layers.append(thin_points([(x, totals[x]) for x in steps], MAX_AREA_POINTS))
    return layers


def thin_points(points: Points, limit: int = MAX_POINTS) -> Points:
    """At most `limit` points: means over buckets of equal size. The first and the last point stay as they are."""
    if len(points) <= limit:
        return list(points)
    size = math.ceil((len(points) - 2) / (limit - 2))
    middle = [points[i : min(i + size, len(points) - 1)] for i in range(1, len(points) - 1, size)]
    means = [(sum(x for x, _ in bucket) / len(bucket), sum(y for _, y in bucket) / len(bucket)) for bucket in middle]
    return [points[0], *means, points[-1]]


def smooth_points(points: Points, window: int) -> Points:
    """Trailing mean: a point never shows what happened after it."""
    total, result = 0.0, []
    for i, (x, y) in enumerate(points):
        total += y - (points[i - window][1] if i >= window else 0.0)
        result.append((x, total / min(i + 1, window)))
    return result


def find_ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten) inside [low, high]."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def write_value(value: float, share: bool = False) -> str:
    """A number beside an axis; a share as a percentage."""
    if share:
        return f"{100 * value:.0f} %" if abs(100 * value - round(100 * value)) < 1e-6 else f"{100 * value:.1f} %"
    size = abs(value)
    if size >= 10_000:
        return f"{value / 1000:.0f}k"
    return f"{value:.1e}".replace("e-0", "e-") if 0 < size < 0.001 else f"{value:.4g}"


def dump_hover_data(chart: Chart, shown: Sequence[Series], scale: Scale) -> str:
    """What the tooltip needs: the x range, and per series its thinned points."""
    series = [
        {"label": one.label, "points": [[round(x, 1), float(f"{y:.5g}")] for x, y in thin_points(one.points)]} for one in shown
    ]
    values = {"x": [scale.x0, scale.x1], "plot": [LEFT, WIDTH - RIGHT, WIDTH], "share": chart.share, "unit": chart.unit}
    return json.dumps(values | {"series": series}, separators=(",", ":"), allow_nan=False)
