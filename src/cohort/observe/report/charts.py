"""Line charts and stacked areas as SVG marks. Colours are CSS classes, so that one drawing works in light and dark mode."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 560, 230
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 28
MAX_POINTS = 400
"""Above this, points are averaged in buckets: a chart is 500 pixels wide."""

MAX_AREA_POINTS = 80
"""The same for areas, where single steps are noise."""

NAME_HEIGHT = 15.0
"""Height in pixels above which an area contains its name, for people who cannot distinguish the colours."""

MAX_MARKERS = 40
"""Markers per axis; of more, the last ones are drawn."""

COLOURS = 8
"""Classes c0 to c7 of the stylesheet."""

Points = Sequence[tuple[float, float]]
Mark = tuple[str, dict[str, object], str]
"""An SVG element: its tag, attributes and text (for a shape, its tooltip)."""


@dataclass(frozen=True)
class Series:
    """A line of (step, value) points, optionally with an interval per point."""

    label: str
    points: Points
    intervals: Sequence[tuple[float, float]] = ()
    marks: bool = False
    """Draw a dot at every point, for values at few steps."""
    colour: int | None = None
    """None: by its place in the chart."""


@dataclass(frozen=True)
class Marker:
    """An event at a step, marked on the axis of steps."""

    step: float
    level: str
    """alarm, warning or info."""
    text: str


@dataclass(frozen=True)
class Chart:
    title: str
    caption: str
    series: tuple[Series, ...]
    share: bool = False
    """Values are in [0, 1] and written as percentages."""
    stacked: bool = False
    unit: str = ""
    smooth: bool = True
    window: int = 0
    """Steps of the moving average; 0: depends on the number of points."""
    bands: bool = False
    """Draw the 95 % interval of the moving average, from the scatter of steps in its window."""
    markers: tuple[Marker, ...] = ()

    @property
    def empty(self) -> bool:
        return not any(series.points for series in self.series)


@dataclass(frozen=True)
class Figure:
    """A drawing with its title, caption and legend, for the template."""

    title: str
    caption: str
    label: str
    """A description of the drawing for screen readers."""
    marks: Sequence[Mark]
    legend: Sequence[tuple[int, str]] = ()
    hover: str = ""
    """Data with which the script shows tooltips."""
    style: str = "chart"
    lines: bool = False
    """The legend shows line samples, which also differ by their dashes."""
    chart: Chart | None = None
    """The chart, with every point."""
    numbers: tuple[Sequence[str], Sequence[Sequence[float | str]]] | None = None
    """Heads and rows of the data, if it is not a chart."""
    downloads: Sequence[tuple[str, str]] = ()
    """(label, URL) of the files that the dashboard offers."""
    width: int = WIDTH
    height: int = HEIGHT


@dataclass(frozen=True)
class Scale:
    """Converts data to pixels."""

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
    """An SVG mark. Numbers are pixels, rounded to a tenth; underscores in attribute names become dashes."""
    written = {
        name.replace("_", "-"): f"{value:.1f}" if isinstance(value, float) else value for name, value in attributes.items()
    }
    return tag, {"class": style, **written}, text


def draw_chart(chart: Chart) -> Figure:
    """The chart with its legend and the data for tooltips."""
    # A line keeps its colour if another has no data, so that a colour means the same in every chart of a page.
    places = [place for place, series in enumerate(chart.series) if series.points]
    shown = tuple(chart.series[place] for place in places)
    colours = [series.colour if series.colour is not None else place for place, series in zip(places, shown, strict=True)]
    layers = stack_series(shown) if chart.stacked else [thin_points(series.points) for series in shown]
    scale = fit_scale(chart, shown, layers)
    marks = [*draw_grid(scale, [(tick, write_value(tick, chart.share)) for tick in find_ticks(scale.y0, scale.y1, 6)])]
    steps = [(tick, f"{tick:.0f}") for tick in find_ticks(scale.x0, scale.x1, 6) if tick == int(tick)]
    marks += [*draw_numbers(scale, steps), *(draw_areas(layers, scale, [one.label for one in shown]) if chart.stacked else ())]
    if chart.stacked:
        colours = list(range(len(shown)))
    else:
        lines = zip(colours, shown, layers, strict=True)
        marks += [mark for colour, one, points in lines for mark in draw_line(colour, one, points, chart, scale)]
    markers = [marker for marker in chart.markers if scale.x0 <= marker.step <= scale.x1][-MAX_MARKERS:]
    marks += [mark for marker in markers for mark in draw_marker(marker, scale)]
    marks.append(make_mark("line", "cursor", y1=TOP, y2=HEIGHT - BOTTOM))
    ends = ", ".join(f"{one.label} ends at {write_value(one.points[-1][1], chart.share)}" for one in shown)
    legend = [(colour % COLOURS, one.label) for colour, one in zip(colours, shown, strict=True)]
    label = "; ".join([f"{chart.title}: {ends}", *(f"step {marker.step:g}, {marker.text}" for marker in markers)])
    hover = dump_hover_data(chart, shown, layers, scale, markers)
    return Figure(
        chart.title, chart.caption, label, marks, legend, hover, chart=chart, lines=not chart.stacked and len(shown) > 1
    )


def fit_scale(chart: Chart, shown: Sequence[Series], layers: Sequence[Points]) -> Scale:
    xs = [x for points in layers for x, _ in points]
    ys = [y for points in layers for _, y in points] + [y for s in shown for pair in s.intervals for y in pair]
    x0, x1 = min(xs), max(xs)
    if x0 == x1:
        x0, x1 = x0 - 0.5, x1 + 0.5
    if chart.share:  # from 0 to a round share, so that small shares stay readable and large ones are not magnified
        return Scale(x0, x1, 0.0, next((top for top in (0.05, 0.1, 0.25, 0.5) if max(ys) <= top), 1.0))
    y0, y1 = min(0.0, *ys), max(0.0, *ys)
    if y0 == y1:
        y1 = y0 + 1.0
    room = 0.06 * (y1 - y0)
    return Scale(x0, x1, y0 - (room if y0 < 0 else 0), y1 + room)


def draw_grid(scale: Scale, ticks: Iterable[tuple[float, str]]) -> Iterator[Mark]:
    """Horizontal grid lines with their values on the left."""
    for tick, text in ticks:
        y = scale.y(tick)
        yield make_mark("line", "grid", x1=scale.left, x2=scale.right, y1=y, y2=y)
        yield make_mark("text", "tick", text, x=scale.left - 8, y=y + 3.5, text_anchor="end")


def draw_numbers(scale: Scale, ticks: Iterable[tuple[float, str]]) -> Iterator[Mark]:
    """The values of the horizontal axis."""
    for tick, text in ticks:
        yield make_mark("text", "tick", text, x=scale.x(tick), y=scale.bottom + 19, text_anchor="middle")


def draw_line(colour: int, series: Series, points: Points, chart: Chart, scale: Scale) -> Iterator[Mark]:
    """The marks of a line. points: the thinned points of the series."""
    style = f"c{colour % COLOURS}"
    if series.intervals:
        upper = [(x, high) for (x, _), (_, high) in zip(series.points, series.intervals, strict=True)]
        lower = [(x, low) for (x, _), (low, _) in zip(series.points, series.intervals, strict=True)]
        yield make_mark("polygon", f"band {style}", points=scale.place(upper + lower[::-1]))
        for (x, a), (_, b) in zip(lower, upper, strict=True):
            yield make_mark("line", f"whisker {style}", x1=scale.x(x), x2=scale.x(x), y1=scale.y(a), y2=scale.y(b))
    if chart.smooth and not series.marks and chart.window != 1 and len(points) >= (2 if chart.window else 30):
        yield make_mark("polyline", f"line raw {style}", points=scale.place(points))
        if chart.bands:
            window = chart.window or max(3, len(series.points) // 25)
            low, high = (thin_points(side) for side in find_band(series.points, window))
            yield make_mark("polygon", f"band {style}", points=scale.place([*high, *reversed(low)]))
        if chart.window:
            points = thin_points(smooth_points(series.points, chart.window))
        else:
            points = smooth_points(points, max(3, len(points) // 25))
    dashes = f" d{colour % COLOURS}" if sum(bool(one.points) for one in chart.series) > 1 else ""
    yield make_mark("polyline", f"line {style}{dashes}", points=scale.place(points))
    if series.marks or len(points) == 1:
        for x, y in points:
            yield make_mark("circle", f"dot {style}", cx=scale.x(x), cy=scale.y(y), r=3.6)


def draw_areas(layers: Sequence[Points], scale: Scale, labels: Sequence[str]) -> Iterator[Mark]:
    """Stacked areas, with their names if they are high enough. layers[i] is the running total up to series i."""
    floor: Points = [(x, 0.0) for x, _ in layers[0]] if layers else []
    names = []
    for index, (layer, label) in enumerate(zip(layers, labels, strict=True)):
        yield make_mark("polygon", f"area c{index % COLOURS}", points=scale.place([*layer, *reversed(floor)]))
        half = 4.0 * len(label)
        spots = [
            (scale.y(low) - scale.y(high), scale.x(x), scale.y((low + high) / 2))
            for (x, high), (_, low) in zip(layer, floor, strict=True)
            if scale.left + half <= scale.x(x) <= scale.right - half
        ]
        height, x, y = max(spots, default=(0.0, 0.0, 0.0))
        if height >= NAME_HEIGHT:
            names.append(make_mark("text", "within", label, x=x, y=y + 4, text_anchor="middle"))
        floor = layer
    yield from names


def stack_series(shown: Sequence[Series]) -> list[Points]:
    """Running totals over the union of steps; a missing value counts as 0."""
    steps: list[float] = sorted({x for series in shown for x, _ in series.points})
    totals = dict.fromkeys(steps, 0.0)
    layers: list[Points] = []
    for series in shown:
        for x, y in series.points:
            totals[x] += y
        layers.append(thin_points([(x, totals[x]) for x in steps], MAX_AREA_POINTS))
    return layers


def thin_points(points: Points, limit: int = MAX_POINTS) -> Points:
    """At most `limit` points: means over buckets of equal size, with the first and the last point unchanged."""
    if len(points) <= limit:
        return list(points)
    size, last = math.ceil((len(points) - 2) / (limit - 2)), len(points) - 1
    xs, ys = [x for x, _ in points], [y for _, y in points]
    buckets = [(i, min(i + size, last)) for i in range(1, last, size)]
    means = [(sum(xs[i:j]) / (j - i), sum(ys[i:j]) / (j - i)) for i, j in buckets]
    return [points[0], *means, points[-1]]


def smooth_points(points: Points, window: int) -> Points:
    """The trailing mean: no point depends on later ones."""
    total, result = 0.0, []
    for i, (x, y) in enumerate(points):
        total += y - (points[i - window][1] if i >= window else 0.0)
        result.append((x, total / min(i + 1, window)))
    return result


def find_band(points: Points, window: int) -> tuple[Points, Points]:
    """The 95 % interval of the trailing mean at every point: 1.96 standard errors, treating the steps in the window as independent."""
    total = squares = 0.0
    low, high = [], []
    for i, (x, y) in enumerate(points):
        gone = points[i - window][1] if i >= window else 0.0
        total, squares, count = total + y - gone, squares + y * y - gone * gone, min(i + 1, window)
        mean = total / count
        spread = max(0.0, squares / count - mean * mean) * count / max(1, count - 1)
        room = 1.96 * math.sqrt(spread / count)
        low.append((x, mean - room))
        high.append((x, mean + room))
    return low, high


def draw_marker(marker: Marker, scale: Scale) -> Iterator[Mark]:
    """A vertical line with a shape on the axis: a triangle for an alarm, a diamond for a warning, a circle for info."""
    x, y, style = scale.x(marker.step), scale.bottom + 5, f"flag {marker.level}"
    yield make_mark("line", style, x1=x, x2=x, y1=scale.top, y2=scale.bottom)
    tooltip = f"step {marker.step:g}: {marker.text}"
    shapes = {"alarm": ((0, -5), (5, 4), (-5, 4)), "warning": ((0, -5), (5, 0), (0, 5), (-5, 0))}
    if corners := shapes.get(marker.level):
        yield make_mark("polygon", style, tooltip, points=" ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners))
    else:
        yield make_mark("circle", style, tooltip, cx=x, cy=y, r=3.6)


def find_ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten) inside [low, high]."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def write_value(value: float, share: bool = False) -> str:
    """A number for an axis; a share as a percentage."""
    if share:
        return f"{100 * value:.0f} %" if abs(100 * value - round(100 * value)) < 1e-6 else f"{100 * value:.1f} %"
    size = abs(value)
    if size >= 10_000:
        return f"{value / 1000:.0f}k"
    return f"{value:.1e}".replace("e-0", "e-") if 0 < size < 0.001 else f"{value:.4g}"


def dump_hover_data(
    chart: Chart, shown: Sequence[Series], layers: Sequence[Points], scale: Scale, markers: Sequence[Marker]
) -> str:
    """The data for tooltips as JSON: the x range, the events, and the thinned points of each series."""
    thinned = [thin_points(one.points) for one in shown] if chart.stacked else layers
    series = [
        {"label": one.label, "points": [[round(x, 1), float(f"{y:.5g}")] for x, y in points]}
        for one, points in zip(shown, thinned, strict=True)
    ]
    events = [[marker.step, f"{marker.level}: {marker.text}"] for marker in markers]
    values = {"x": [scale.x0, scale.x1], "plot": [LEFT, WIDTH - RIGHT, WIDTH], "share": chart.share, "unit": chart.unit}
    return json.dumps(values | {"series": series, "events": events}, separators=(",", ":"), allow_nan=False)
