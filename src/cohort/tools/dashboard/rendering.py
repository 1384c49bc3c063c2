"""The sections of a page as HTML, its drawings as SVG and its tables as CSV.

A download is named by the page's address and the title of the drawing or table, so its link includes the state of the page.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Template
from markupsafe import Markup

from cohort.base.text import shorten_text
from cohort.errors import CohortError, NotFound
from cohort.observe.report.charts import Chart, Figure
from cohort.observe.report.frame import HERE as REPORT
from cohort.observe.report.frame import Cell, Part, make_environment
from cohort.tools.dashboard.view import Page, View, write_address

HERE = Path(__file__).resolve().parent
PATH = re.compile(r"(?<![\w.])/(?:[^\s/:'\"]+/)+")
"""The folders of an absolute path."""
FORMULA = re.compile(r"[=+\-@\t\r]")
"""The first character of a text that a spreadsheet would evaluate."""
NUMBER = re.compile(r"[+-](?:[\d.,]+(?:e[+-]?\d+)?|inf) ?%?(?: [^=|!@(]*)?")
"""An exception: a number followed by words that cannot call a function or another program."""
MAX_LABEL, LEGEND_LINE = 40, 16
"""Characters of a label in the legend of an SVG file, and the height of a legend line."""


# -- sections as HTML --------------------------------------------------------------------------------------------------


@cache
def list_templates() -> list[Template]:
    """The templates with macros: every parts*.html here, then the report's."""
    environment = make_environment(HERE)
    names = [file.name for file in sorted(HERE.glob("parts*.html"))]
    return [environment.get_template(name) for name in [*names, "report/parts.html"]]


def render_part(macro: str, *values: Any, **words: Any) -> Markup:
    """A macro from the first template that has it; keyword arguments that it does not take are dropped."""
    found = next(template.module for template in list_templates() if hasattr(template.module, macro))
    written = getattr(found, macro)
    return Markup(written(*values, **{word: value for word, value in words.items() if word in written.arguments}))


def list_parts(page: Page) -> list[tuple[str, Part]]:
    """(name, macro with its values) of every section that is not empty."""
    found = []
    for section in page.sections:
        name, part = "", None
        try:
            if isinstance(section, tuple):
                name, part = str(section[0]), section
            elif isinstance(section, str):
                name, part = section, (section, page.data)
            else:
                name = section.__name__
                part = section(page.data)
        except Exception as problem:  # a malformed file costs one section, never the page
            part = make_lost_part(name, problem)
        if part is not None:
            found.append((name, part))
    return found


def make_lost_part(name: str, problem: Exception) -> Part:
    """The message in place of a failed section. Of a path on this machine it shows only the last component."""
    return (
        "lost",
        name.replace("_", " "),
        PATH.sub("", str(problem)) if isinstance(problem, CohortError) else type(problem).__name__,
    )


def render_sections(page: Page, view: View) -> str:
    """The sections of a page, each in an element that can be replaced on its own."""
    written, names = [], Counter[str]()
    found = list_parts(page)
    linked = add_downloads([part for _, part in found], view)
    for (name, _), (part, words) in zip(found, linked, strict=True):
        try:
            body = render_part(*part, **words)
        except Exception as problem:
            body = render_part(*make_lost_part(name, problem))
        names[name] += 1
        written.append(Markup('<section class="part" id="part-{}-{}">{}</section>\n').format(name, names[name], body))
    return Markup().join(written)


def render_frame(page: Page, view: View, sections: str, etag: str = "") -> str:
    return make_environment(HERE).get_template("frame.html").render(page=page, view=view, sections=Markup(sections), etag=etag)


# -- drawings and tables as files --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Item:
    """A drawing or table that can be downloaded."""

    name: str
    """Safe in an address and as a file name."""
    figure: Figure | None = None
    table: tuple[Sequence[Any], Sequence[Sequence[Any]]] | None = None
    """Heads and rows."""

    def link(self, view: View) -> list[tuple[str, str]]:
        """(label, address) of its files."""
        query = [(key, value) for key, value in view.query if key != "item"] + [("item", self.name)]
        kinds = [*(["svg"] if self.figure else []), *(["csv"] if self.table or (self.figure and self.figure.chart) else [])]
        return [(kind.upper(), write_address(f"/{kind}{view.path}", query)) for kind in kinds]


def list_items(parts: Iterable[Part]) -> Iterator[tuple[Part, dict[int, Item]]]:
    """Every part with its items, by the id of the drawing or table."""
    taken = Counter[str]()

    def name_item(title: str) -> str:
        name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60] or "item"
        taken[name] += 1
        return name if taken[name] == 1 else f"{name}-{taken[name]}"

    for part in parts:
        found: dict[int, Item] = {}
        for value in part[1:]:
            for one in value if isinstance(value, list | tuple) else [value]:
                if isinstance(one, Figure):
                    found[id(one)] = Item(name_item(one.title), one, one.numbers)
        if str(part[0]).endswith("table") and 3 < len(part) < 7:  # with a seventh value it has its own downloads
            found[id(part)] = Item(name_item(str(part[1])), table=(part[2], part[3]))
        yield part, found


def add_downloads(parts: Sequence[Part], view: View) -> Iterator[tuple[Part, dict[str, Any]]]:
    """Every part with links to its files: in its drawings, or as an argument for the macro of a table."""
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
    raise NotFound("item: the page has no drawing or table with this name.")


def write_csv(item: Item) -> str:
    lines = list_points(item.figure.chart) if item.figure and item.figure.chart else list_cells(item)
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows([[guard_cell(value) for value in line] for line in lines])
    return text.getvalue()


def list_points(chart: Chart) -> Iterator[list[Any]]:
    """A row for each step with the unsmoothed value of every series, and two columns more for intervals."""
    columns: list[tuple[str, dict[float, float]]] = []
    for series in chart.series:
        columns.append((series.label, dict(series.points)))
        if series.intervals:
            steps = [step for step, _ in series.points]
            for place, word in enumerate(("low", "high")):
                ends = dict(zip(steps, (pair[place] for pair in series.intervals), strict=True))
                columns.append((f"{series.label} {word}", ends))
    yield ["step", *(label for label, _ in columns)]
    for step in sorted({step for _, points in columns for step in points}):
        yield [int(step) if step == int(step) else step, *(points.get(step, "") for _, points in columns)]


def list_cells(item: Item) -> Iterator[list[Any]]:
    if item.table is None:
        raise NotFound("item: this drawing has no numbers.")
    heads, rows = item.table
    for cells in (heads, *rows):
        line: list[Any] = []
        for cell in cells:
            one = Cell(str(cell)) if not isinstance(cell, Cell) else cell
            bar = f"{one.bar:.4g} %" if one.bar is not None and not one.text else ""
            line += [" ".join(filter(None, (one.text, bar, one.small, one.note))), *[""] * (one.span - 1)]
        yield line


def guard_cell(value: Any) -> Any:
    """The value, with an apostrophe before a text that a spreadsheet would take for a formula."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str) and FORMULA.match(value) and not NUMBER.fullmatch(value):
        return f"'{value}"
    return value


def write_svg(item: Item) -> str:
    """The drawing as a self-contained file with title, legend and styles."""
    if item.figure is None:
        raise NotFound("item: a table can only be downloaded as CSV.")
    legend, x, line = [], 8, 0
    for colour, label in item.figure.legend:
        short = shorten_text(label, MAX_LABEL, one_line=True)
        width = 46 + 7 * len(short)  # letters of 12 pixels
        if x > 8 and x + width > item.figure.width:
            x, line = 8, line + 1
        legend.append((colour, short, x, line))
        x += width
    top = 52 + LEGEND_LINE * line
    placed = [(colour, label, x, 40 - top + LEGEND_LINE * line) for colour, label, x, line in legend]
    styles = Markup((REPORT / "drawing.css").read_text(encoding="utf-8"))
    template = make_environment(REPORT).get_template("drawing.svg")
    return template.render(drawn=item.figure, styles=styles, legend=placed, top=top)
