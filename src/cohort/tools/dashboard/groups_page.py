"""The page that lists the groups and completions of a whole run, with filters, orders and text search."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cohort.base.text import shorten_text
from cohort.errors import CohortError
from cohort.observe.report.frame import Cell, Part
from cohort.observe.rollouts import Rows, list_token_steps
from cohort.observe.terminal import write_question
from cohort.tools.dashboard.group_queries import (
    FILTERS,
    ORDERS,
    count_filters,
    find_group_starts,
    list_places,
    load_rows,
    match_rows,
    parse_steps,
    split_groups,
)
from cohort.tools.dashboard.run_index import RunIndex, ShownRun
from cohort.tools.dashboard.step_files import find_recorded_groups, find_step_file, pick_step_rows, search_texts
from cohort.tools.dashboard.view import Page, View

PAGE_SIZE = {"groups": 25, "completions": 40}
"""Rows of a list. Each may need another step's file."""
RECORDED_SHOWN = 8
"""Steps with recorded tokens that get a link."""
SNIPPET = 110
"""Characters of a text in a list."""
VERDICTS = {1: ("right", "✓", "right"), 0: ("wrong", "✗", "wrong"), -1: ("none", "–", "not judged")}
"""Verdict -> style, sign and word."""
MAX_SIGNS = 32
"""Verdicts of a group that are drawn in a list."""


def show_groups(run_index: RunIndex, view: View) -> Page:
    """One page of groups or completions."""
    run = run_index.find(view.params["name"])
    steps = parse_steps(view.read("step").strip())
    wanted, shown = view.read("find")[:200], view.choose("show", ("groups", "completions"))
    filter_name = view.choose("filter", tuple(FILTERS))
    order = view.choose("order", ("newest", "oldest") if wanted else tuple(ORDERS))
    rows, note = load_rows(run)
    matches = match_rows(rows, filter_name, steps)
    # Links to the latest steps whose tokens are recorded.
    recorded = list_token_steps(run.folder.rollouts)[-RECORDED_SHOWN:]
    sections: list[Part] = [
        ("place_head", [(run.title, run.address), ("Groups", "")], "Groups", describe_rows(rows), note),
        ("filter_bar", list_chips(view, rows, steps, filter_name), make_form(view, shown, order, bool(wanted))),
        ("recorded", [(f"step {step}", f"{run.address}/groups?step={step}&order=oldest") for step in recorded]),
    ]
    if wanted:
        sections += find_texts(run, view, rows, matches, wanted, order)
    else:
        sections += list_page(run, view, rows, matches, order, shown)
    return Page(f"{run.title} · groups", sections, styles=["groups.css"])


def describe_rows(rows: Rows) -> str:
    if not len(rows):
        return "No completions."
    first, last, steps = int(rows["step"][0]), int(rows["step"][-1]), int((rows["step"][1:] != rows["step"][:-1]).sum()) + 1
    span = f"{write_thousands(steps, 'step')} ({first:,} to {last:,})" if steps > 1 else f"step {first}"
    return f"{write_thousands(len(rows), 'completion')} in {write_thousands(len(find_group_starts(rows)), 'group')} of {span}."


def list_chips(view: View, rows: Rows, steps: tuple[int, int] | None, chosen: str) -> list[dict[str, Any]]:
    """The filters as links with the number of matching completions."""
    counts = count_filters(rows, steps)
    chips = []
    for name, (label, about, _) in FILTERS.items():
        if counts[name] or name in ("all", chosen):
            address = view.link(filter=name, page=None, at=None, show=None if name == "all" else "completions")
            count = f"{counts[name]:,}"
            chips.append({"label": label, "about": about, "count": count, "current": name == chosen, "address": address})
    return chips


def make_form(view: View, shown: str, order: str, searching: bool) -> dict[str, Any]:
    return {
        "action": view.path,
        "filter": view.read("filter"),
        "step": view.read("step"),
        "find": view.read("find"),
        "show": ["completions"] if searching else ["groups", "completions"],
        "shown": "completions" if searching else shown,
        "orders": [(name, label) for name, (label, _) in ORDERS.items() if not searching or name in ("newest", "oldest")],
        "order": order,
    }


def list_page(run: ShownRun, view: View, rows: Rows, matches: np.ndarray, order: str, shown: str) -> list[Part]:
    """One page of the list with links to the other pages."""
    page = list_places(rows, matches, order, shown == "groups", view.read_number("page", 1, 1), PAGE_SIZE[shown])
    if not page.total:
        return [("empty_card", "No completions match this filter.", [FILTERS[view.choose("filter", tuple(FILTERS))][1]])]
    by_group = shown == "groups"
    table = tabulate_groups(run, split_groups(rows, page.places)) if by_group else tabulate_completions(run, rows[page.places])
    heads, lines, problems = table
    turns = [("first", 1), ("previous", page.page - 1), ("next", page.page + 1), ("last", page.pages)]
    links = [
        (word, view.link(page=number) if 1 <= number <= page.pages and number != page.page else "") for word, number in turns
    ]
    caption = f"{page.total:,} {shown}, {ORDERS[order][0]}; page {page.page:,} of {page.pages:,}."
    sections: list[Part] = [("linked_table", shown.capitalize(), heads, lines, caption, problems), ("turning", links)]
    return sections if page.pages > 1 else sections[:1]


def find_texts(run: ShownRun, view: View, rows: Rows, matches: np.ndarray, wanted: str, order: str) -> list[Part]:
    """The completions that contain a text, and how much was searched."""
    start = view.read_number("at", -1, -1)
    found = search_texts(
        run, rows, matches, wanted, newest=order == "newest", start=None if start < 0 else start, most=PAGE_SIZE["completions"]
    )
    read, quoted = found.steps_read, shorten_text(wanted, 60, one_line=True)
    span = "no step" if not read else f"step {read[0]}" if len(read) == 1 else f"steps {read[0]} to {read[-1]}"
    result = (
        f"{write_thousands(len(found.places), 'completion')} with “{quoted}” in the prompts, completions and answers of "
        f"{write_thousands(found.rows_read, 'completion')} of {span}."
    )
    if found.go_on is None:
        result += " The search is complete." if start >= 0 else " All completions of the filter were searched."
    heads, lines, problems = tabulate_completions(run, rows[np.array(found.places, np.int64)])
    sections: list[Part] = []
    if lines:
        sections.append(("linked_table", "Found", heads, lines, result, [*found.unreadable, *problems]))
    else:
        title = "Nothing found so far." if found.go_on is not None else "Nothing found."
        sections.append(("empty_card", title, [result, *found.unreadable]))
    if found.go_on is not None:
        step = int(rows["step"][found.go_on])
        sections.append(("turning", [(f"continue the search at step {step}", view.link(at=found.go_on))]))
    return sections


# -- tables ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Linked(Cell):
    """A cell of a list with a link."""

    link: str = ""
    signs: tuple[tuple[str, str, str], ...] = ()
    """(style, sign, word) before the text, as in VERDICTS."""


def read_texts(
    run: ShownRun, places: Iterable[tuple[int, int]], columns: Sequence[str]
) -> tuple[dict[tuple[int, int], Mapping[str, Any]], list[str]]:
    """The columns of rows, by (step, row), and messages about unreadable files. Each file is opened once."""
    wanted: dict[int, set[int]] = {}
    for step, row in places:
        wanted.setdefault(step, set()).add(row)
    texts: dict[tuple[int, int], Mapping[str, Any]] = {}
    problems = []
    for step, rows in wanted.items():
        try:
            texts |= {(step, row): one for row, one in pick_step_rows(find_step_file(run, step), rows, columns).items()}
        except CohortError as problem:
            problems.append(str(problem))
    return texts, problems


def tabulate_groups(run: ShownRun, groups: Sequence[Rows]) -> tuple[list[str], list[list[Linked]], list[str]]:
    """(heads, a row for each group, messages about unreadable files). `groups`: the records of each group's completions."""
    places = [(int(members["step"][0]), int(members["row"][0])) for members in groups]
    texts, problems = read_texts(run, places, ("prompt", "reference_answer"))
    recorded = {step: find_recorded_groups(run, step) for step, _ in places}
    lines = []
    for members, place in zip(groups, places, strict=True):
        step, group, text = place[0], int(members["group"][0]), texts.get(place, {})
        verdicts, rewards = members["success"], members["reward"][~np.isnan(members["reward"])]
        right, judged, cut = int((verdicts == 1).sum()), int((verdicts >= 0).sum()), int((members["end"] == 1).sum())
        signs = tuple(VERDICTS.get(verdict, VERDICTS[-1]) for verdict in verdicts[:MAX_SIGNS].tolist())
        note = "tokens recorded" if group in recorded[step] else ""
        lines.append(
            [
                Linked(str(step)),
                Linked(f"group {group}", note=note, link=f"{run.address}/group/{step}/{group}"),
                Linked(snip_prompt(text), note=name_value("reference answer", text.get("reference_answer")), style="text"),
                Linked(f"{right} of {judged}" if judged else "not judged", signs=signs, style="signs"),
                Linked(write_number(float(rewards.mean())) if len(rewards) else "–"),
                Linked(write_number(float(rewards.std())) if len(rewards) else "–"),
                Linked(str(members["length"].max()), note=f"{cut} truncated" if cut else ""),
            ]
        )
    return ["step", "group", "prompt", "right", "mean reward", "std", "most tokens"], lines, problems


def tabulate_completions(run: ShownRun, rows: Rows) -> tuple[list[str], list[list[Linked]], list[str]]:
    """(heads, a row for each completion, messages about unreadable files)."""
    places = list(zip(rows["step"].tolist(), rows["row"].tolist(), strict=True))
    texts, problems = read_texts(run, places, ("prompt", "completion", "extracted", "reference_answer"))
    lines = []
    for record, place in zip(rows, places, strict=True):
        step, group, sample, text = place[0], int(record["group"]), int(record["sample"]), texts.get(place, {})
        style, sign, word = VERDICTS.get(int(record["success"]), VERDICTS[-1])
        answers = [name_value("answer", text.get("extracted")), name_value("reference answer", text.get("reference_answer"))]
        tokens = f"{run.address}/tokens/{step}/{group}/{sample}"
        lines.append(
            [
                Linked(str(step)),
                Linked(f"{group} · {sample}", link=f"{run.address}/group/{step}/{group}#sample-{sample}"),
                Linked(snip_prompt(text), style="text brief"),
                Linked(snip(str(text.get("completion") or "")), note=" · ".join(filter(None, answers)), style="text"),
                Linked(word, signs=((style, sign, word),), style="signs"),
                Linked(write_number(float(record["reward"]))),
                Linked(write_signed(float(record["advantage"]))),
                Linked(str(record["length"]), note="truncated" if record["end"] == 1 else "", link=tokens),
            ]
        )
    return ["step", "group · sample", "prompt", "completion", "verdict", "reward", "advantage", "tokens"], lines, problems


def name_value(name: str, value: Any) -> str:
    """ "answer 46"; "" if there is none."""
    return "" if value is None else f"{name} {snip(str(value))}"


def snip_prompt(row: Mapping[str, Any]) -> str:
    return snip(write_question(str(row.get("prompt") or "")))


def snip(text: str) -> str:
    return shorten_text(text, SNIPPET, one_line=True)


def write_number(value: float) -> str:
    return "–" if np.isnan(value) else f"{value:.4g}"


def write_signed(value: float | None) -> str:
    if value is None or np.isnan(value):
        return "–"
    return "0" if value == 0 else f"{value:+.3g}"


def write_thousands(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
