"""Every drawing as SVG and every table and drawing as CSV, found on the page that shows it.

A file is named by the page's own address and the title of what it holds, so whatever a page shows, sends its state along.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from cohort.base.text import shorten_text
from cohort.errors import NotFound
from cohort.observe.report.charts import Chart, Figure
from cohort.observe.report.frame import HERE as REPORT
from cohort.observe.report.frame import Cell, Part, make_environment
from cohort.tools.dashboard.view import View, write_address

FORMULA = re.compile(r"[=+\-@\t\r]")
"""How a text begins that a spreadsheet would calculate."""
NUMBER = re.compile(r"[+-](?:[\d.,]+(?:e[+-]?\d+)?|inf) ?%?(?: [^=|!@(]*)?")
"""What begins so and is a number, with words behind it that call nothing: no function, no other program."""
MAX_LABEL, LEGEND_LINE = 40, 16
"""Letters of a label in the legend of a file, and the height of a line of it."""


@dataclass(frozen=True)
class Item:
    """Something that can be downloaded."""

    name: str
    """Safe in an address and as the name of a file."""
    title: str
    figure: Figure | None = None
    table: tuple[Sequence[Any], Sequence[Sequence[Any]]] | None = None
    """Heads and rows."""

    def link(self, view: View) -> list[tuple[str, str]]:
        """(word, address) of its files."""
        words = [(key, value) for key, value in view.query if key != "item"] + [("item", self.name)]
        kinds = [*(["svg"] if self.figure else []), *(["csv"] if self.table or (self.figure and self.figure.chart) else [])]
        return [(kind.upper(), write_address(f"/{kind}{view.path}", words)) for kind in kinds]


def list_items(parts: Iterable[Part]) -> Iterator[tuple[Part, dict[int, Item]]]:
    """Every part with what can be downloaded of it, by the identity of the drawing or table."""
    taken: dict[str, int] = {}

    def name_item(title: str) -> str:
        name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60] or "item"
        taken[name] = taken.get(name, 0) + 1
        return name if taken[name] == 1 else f"{name}-{taken[name]}"

    for part in parts:
        found: dict[int, Item] = {}
        for value in part[1:]:
            for one in value if isinstance(value, list | tuple) else [value]:
                if isinstance(one, Figure):
                    found[id(one)] = Item(name_item(one.title), one.title, one, one.numbers)
        if str(part[0]).endswith("table") and len(part) > 3:
            found[id(part)] = Item(name_item(str(part[1])), str(part[1]), table=(part[2], part[3]))
        yield part, found


def add_downloads(parts: Sequence[Part], view: View) -> Iterator[tuple[Part, dict[str, Any]]]:
    """Every part with the addresses of its files: in its drawings, or as a word for the macro of a table."""
    for part, items in list_items(parts):
        table = items.pop(id(part), None)

        def link(value: Any, items: Mapping[int, Item] = items) -> Any:
            if isinstance(value, list | tuple):
                return [link(one) for one in value] if any(isinstance(one, Figure) for one in value) else value
            return replace(value, downloads=items[id(value)].link(view)) if isinstance(value, Figure) else value

        yield (tuple(map(link, part)) if items else part), ({"downloads": table.link(view)} if table else {})


def find_item(parts: Sequence[Part], name: str) -> Item:
    for _, items in list_items(parts):
        for item in items.values():
            if item.name == name:
                return item
    raise NotFound("item: the page has no drawing or table of this name.")


# -- CSV ---------------------------------------------------------------------------------------------------------------


def write_csv(item: Item) -> str:
    lines = list_points(item.figure.chart) if item.figure and item.figure.chart else list_cells(item)
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows([[guard_cell(value) for value in line] for line in lines])
    return text.getvalue()


def list_points(chart: Chart) -> Iterator[list[Any]]:
    """A line for every step, a column for every series, and two more where it has intervals: the values themselves, not smoothed."""
    columns: list[tuple[str, dict[float, float]]] = []
    for series in chart.series:
        columns.append((series.label, dict(series.points)))
        if series.intervals:
            steps = [step for step, _ in series.points]
            for place, word in enumerate(("low", "high")):
                columns.append(
                    (f"{series.label} {word}", dict(zip(steps, (pair[place] for pair in series.intervals), strict=True)))
                )
    yield ["step", *(label for label, _ in columns)]
    for step in sorted({step for _, points in columns for step in points}):
        yield [int(step) if step == int(step) else step, *(points.get(step, "") for _, points in columns)]


def list_cells(item: Item) -> Iterator[list[Any]]:
    if item.table is None:
        raise NotFound("item: there are no numbers behind this drawing.")
    heads, rows = item.table
    for cells in (heads, *rows):
        line: list[Any] = []
        for cell in cells:
            one = Cell(str(cell)) if not isinstance(cell, Cell) else cell
            bar = f"{one.bar:.4g} %" if one.bar is not None and not one.text else ""
            line += [" ".join(filter(None, (one.text, bar, one.small, one.note))), *[""] * (one.span - 1)]
        yield line


def guard_cell(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula is marked as text; numbers stay as they are."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str) and FORMULA.match(value) and not NUMBER.fullmatch(value):
        return f"'{value}"
    return value


# -- SVG ---------------------------------------------------------------------------------------------------------------


def write_svg(item: Item) -> str:
    """The drawing as a file of its own: with its title, its legend and its styles."""
    if item.figure is None:
        raise NotFound("item: this is a table; it can be had as CSV.")
    legend, x, line = [], 8, 0
    for colour, label in item.figure.legend:
        short = shorten_text(label, MAX_LABEL, one_line=True)
        width = 46 + 7 * len(short)  # of letters of 12 pixels
        if x > 8 and x + width > item.figure.width:
            x, line = 8, line + 1
        legend.append((colour, short, x, line))
        x += width
    top = 52 + LEGEND_LINE * line
    placed = [(colour, label, x, 40 - top + LEGEND_LINE * line) for colour, label, x, line in legend]
    styles = Markup((REPORT / "drawing.css").read_text(encoding="utf-8"))
    template = make_environment(REPORT).get_template("drawing.svg")
    return template.render(drawn=item.figure, styles=styles, legend=placed, top=top)
