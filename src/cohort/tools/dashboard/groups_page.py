"""Groups and completions of a whole run: filters, orders, search and pages."""

from __future__ import annotations

from typing import Any

import numpy as np

from cohort.base.text import shorten_text
from cohort.errors import NotFound, RunError
from cohort.observe.report.frame import Part
from cohort.observe.rollouts import Rows, list_token_steps
from cohort.tools.dashboard.group_queries import (
    FILTERS,
    ORDERS,
    count_filters,
    count_steps,
    find_group_starts,
    list_places,
    load_rows,
    match_rows,
    measure_groups,
    parse_steps,
)
from cohort.tools.dashboard.listing import tabulate_completions, tabulate_groups, write_thousands
from cohort.tools.dashboard.shelf import Shelf, ShownRun
from cohort.tools.dashboard.text_search import Found, search_texts
from cohort.tools.dashboard.view import Page, View

PAGE_SIZE = {"groups": 25, "completions": 40}
"""Rows of a list: each may open the file of another step."""
RECORDED_SHOWN = 8
"""Steps with recorded tokens that are named."""


def show_groups(shelf: Shelf, view: View) -> Page:
    """Groups or completions over the whole run, one page of them."""
    run = shelf.find(view.words["name"])
    steps = read_steps(view)
    wanted, shown = view.read("find")[:200], view.choose("show", ("groups", "completions"))
    filter_name = view.choose("filter", tuple(FILTERS))
    order = view.choose("order", ("newest", "oldest") if wanted else tuple(ORDERS))
    loaded = load_rows(run, steps[0] if steps and steps[0] == steps[1] else None)
    matches = match_rows(loaded.rows, filter_name, steps)
    sections: list[Part] = [
        show_list_head(run, loaded.rows, loaded.note),
        ("filter_bar", list_chips(view, loaded.rows, steps, filter_name), make_form(view, shown, order, bool(wanted))),
        ("recorded", list_recorded(run)),
    ]
    if wanted:
        sections += find_texts(run, view, loaded.rows, matches, wanted, order)
    else:
        sections += list_page(run, view, loaded.rows, matches, order, shown)
    return Page(f"{run.title} · groups", sections, styles=["groups.css"])


def read_steps(view: View) -> tuple[int, int] | None:
    try:
        return parse_steps(view.read("step").strip())
    except RunError as problem:
        raise NotFound(str(problem)) from None


def show_list_head(run: ShownRun, rows: Rows, note: str) -> Part:
    steps, groups = count_steps(rows), len(find_group_starts(rows))
    sentence = "There is nothing to list."
    if len(rows):
        first, last = int(rows["step"][0]), int(rows["step"][-1])
        span = f"{write_thousands(steps, 'step')}, {first} to {last}" if steps > 1 else f"step {first}"
        sentence = f"{write_thousands(len(rows), 'completion')} in {write_thousands(groups, 'group')} of {span}."
    return "place_head", [(run.title, run.address), ("Groups", "")], "Groups", sentence, note


def list_recorded(run: ShownRun) -> list[tuple[str, str]]:
    """Links to the last steps of which single tokens are recorded."""
    steps = list_token_steps(run.folder.rollouts)
    return [(f"step {step}", f"{run.address}/groups?step={step}&order=oldest") for step in steps[-RECORDED_SHOWN:]]


def list_chips(view: View, rows: Rows, steps: tuple[int, int] | None, chosen: str) -> list[dict[str, Any]]:
    """The filters as links, each with how many completions it leaves."""
    counts = count_filters(rows, steps)
    chips = [
        {
            "label": one.label,
            "about": one.about,
            "count": f"{counts[name]:,}",
            "current": name == chosen,
            "address": view.link(filter=name, page=None, at=None, show=None if name == "all" else "completions"),
        }
        for name, one in FILTERS.items()
        if counts[name] or name in ("all", chosen)
    ]
    longest = view.link(order="longest", page=None, at=None, find=None, show="completions")
    about = "The longest completions first."
    return [
        *chips,
        {"label": "longest", "about": about, "count": "", "current": view.read("order") == "longest", "address": longest},
    ]


def make_form(view: View, shown: str, order: str, searching: bool) -> dict[str, Any]:
    orders = [(name, label) for name, (label, _) in ORDERS.items() if not searching or name in ("newest", "oldest")]
    return {
        "action": view.path,
        "filter": view.read("filter"),
        "step": view.read("step"),
        "find": view.read("find"),
        "show": ["completions"] if searching else ["groups", "completions"],
        "shown": "completions" if searching else shown,
        "orders": orders,
        "order": order,
    }


def list_page(run: ShownRun, view: View, rows: Rows, matches: np.ndarray, order: str, shown: str) -> list[Part]:
    """One page of the list, with its table and the links to others."""
    page = list_places(rows, matches, order, shown == "groups", view.read_number("page", 1, 1), PAGE_SIZE[shown])
    if shown == "groups":
        heads, lines, problems = tabulate_groups(run, measure_groups(rows, page.places))
    else:
        heads, lines, problems = tabulate_completions(run, rows[page.places])
    if not lines:
        return [("told_small", "Nothing is in this filter.", [FILTERS[view.choose("filter", tuple(FILTERS))].about])]
    turns = [("first", 1), ("previous", page.page - 1), ("next", page.page + 1), ("last", page.pages)]
    links = [
        (word, view.link(page=number) if 1 <= number <= page.pages and number != page.page else "") for word, number in turns
    ]
    many = f"{page.total:,} {shown}, {ORDERS[order][0]}; page {page.page:,} of {page.pages:,}."
    sections: list[Part] = [("linked_table", shown.capitalize(), heads, lines, many, problems), ("turning", links)]
    return sections if page.pages > 1 else sections[:1]


def find_texts(run: ShownRun, view: View, rows: Rows, matches: np.ndarray, wanted: str, order: str) -> list[Part]:
    """The completions that hold a text, and what was searched for them."""
    start = view.read_number("at", -1, -1)
    found = search_texts(
        run, rows, matches, wanted, newest=order == "newest", start=None if start < 0 else start, most=PAGE_SIZE["completions"]
    )
    said, ending = describe_search(found, wanted, start >= 0)
    heads, lines, problems = tabulate_completions(run, rows[np.array(found.places, np.int64)])
    sections: list[Part] = []
    if lines:
        sections.append(("linked_table", "Found", heads, lines, f"{said} {ending}".strip(), [*found.unreadable, *problems]))
    else:
        sections.append(
            (
                "told_small",
                "Nothing found so far." if found.go_on is not None else "Nothing found.",
                [said, ending, *found.unreadable],
            )
        )
    if found.go_on is not None:
        step = int(rows["step"][found.go_on])
        sections.append(("turning", [(f"go on searching from step {step}", view.link(at=found.go_on))]))
    return sections


def describe_search(found: Found, wanted: str, continued: bool) -> tuple[str, str]:
    """What was found where, and whether that is all."""
    read = found.steps_read
    span = "no step" if not read else f"step {read[0]}" if len(read) == 1 else f"steps {read[0]} to {read[-1]}"
    searched = (
        f"the prompts, completions, extracted answers and golds of {write_thousands(found.rows_read, 'completion')} of {span}"
    )
    quoted = shorten_text(wanted, 60, one_line=True)
    said = f"{write_thousands(len(found.places), 'completion')} with “{quoted}” in {searched}."
    if found.go_on is not None:
        return said, ""
    return said, "The search has come to the end." if continued else "Everything in the filter was searched."
