"""The same prompt through training: all its groups, how often it is solved, and what the policy wrote first and last."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Any

from cohort.errors import CohortError, NotFound
from cohort.observe.look import describe_completion, write_question
from cohort.observe.report.charts import Chart, Series
from cohort.observe.report.curves import show_charts
from cohort.observe.report.frame import Part
from cohort.tools.dashboard.group_queries import GroupNumbers, find_prompt_groups, load_rows
from cohort.tools.dashboard.listing import VERDICTS, tabulate_groups, write_thousands
from cohort.tools.dashboard.shelf import Shelf, ShownRun
from cohort.tools.dashboard.step_files import read_shown_rows
from cohort.tools.dashboard.view import Page, View

PAGE_SIZE = 50
COMPLETIONS_SHOWN = 3
"""Of the first and of the last group: the best, the worst, and one between."""


def show_prompt(shelf: Shelf, view: View) -> Page:
    """Every group of one prompt, by its row number in the source."""
    run, index = shelf.find(view.words["name"]), view.read_number("index", least=-(2**62), most=2**62)
    step = view.read_number("step", 0)
    loaded = load_rows(run, step or None)
    groups = find_prompt_groups(loaded.rows, index)
    if not groups:
        raise NotFound(f"No completions of prompt {index} are kept in this run. {loaded.note}".strip())
    path = [(run.title, run.address), ("Groups", f"{run.address}/groups"), (f"Prompt {index}", "")]
    ends = [groups[0], groups[-1]] if len(groups) > 1 else groups
    sections: list[Part | None] = [
        ("place_head", path, f"Prompt {index} through training", describe_course(groups), loaded.note),
        show_ends(run, ends),
        show_course(groups),
        *list_groups(run, view, groups),
    ]
    return Page(f"{run.title} · prompt {index}", [section for section in sections if section], styles=["groups.css"])


def describe_course(groups: Sequence[GroupNumbers]) -> str:
    first, last = groups[0], groups[-1]
    if len(groups) == 1:
        return f"It was drawn once, in step {first.step}: {first.right} of {first.judged} completions are right."
    course = ""
    if first.judged and last.judged:
        course = f" {first.right} of {first.judged} completions were right at first, {last.right} of {last.judged} at last."
    return f"It was drawn {len(groups)} times, in steps {first.step} to {last.step}.{course}"


def show_course(groups: Sequence[GroupNumbers]) -> Part | None:
    """Success and reward over the steps in which the prompt was drawn."""
    if len(groups) < 2:
        return None
    success = [(float(one.step), one.right / one.judged) for one in groups if one.judged]
    reward = [(float(one.step), one.mean) for one in groups if not isnan(one.mean)]
    few = len(groups) <= 60
    charts = [
        Chart(
            "Success of this prompt",
            "Share of the group that is right, each time it was drawn.",
            (Series("success", success, marks=few),),
            share=True,
        ),
        Chart("Reward of this prompt", "Mean of the group.", (Series("reward", reward, marks=few, colour=1),)),
    ]
    return show_charts("Step by step", charts)


def show_ends(run: ShownRun, ends: Sequence[GroupNumbers]) -> Part | None:
    """What the policy wrote when it met the prompt first, and when it met it last."""
    prompt, gold = "", None
    sides: list[tuple[str, list[tuple[str, str, str]] | None]] = []
    for word, group in zip(("first" if len(ends) > 1 else "once", "last"), ends, strict=False):
        try:
            rows = read_shown_rows(run, group.step, group.first_row, group.size)
        except CohortError as problem:
            sides.append((f"{word}: step {group.step}. {problem}", None))
            continue
        prompt, gold = write_question(str(rows[0].get("prompt") or "")), rows[0].get("gold")
        sides.append((f"{word}, in step {group.step}", [describe_said(row) for row in pick_telling(rows)]))
    meta = "" if gold is None else f"gold {gold}"
    title = "First and last" if len(ends) > 1 else "What the policy wrote"
    return "problems", title, [{"meta": meta, "prompt": prompt, "sides": sides}]


def pick_telling(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The completion with the largest advantage, the one in the middle and the one with the smallest."""
    ordered = sorted(rows, key=lambda row: -(row.get("advantage") or 0.0))
    return [ordered[place] for place in sorted({0, len(ordered) // 2, len(ordered) - 1})][:COMPLETIONS_SHOWN]


def describe_said(row: dict[str, Any]) -> tuple[str, str, str]:
    style, _, _ = VERDICTS[-1 if row.get("success") is None else int(row["success"])]
    return style, describe_completion(row), str(row.get("completion") or "(nothing)")


def list_groups(run: ShownRun, view: View, groups: Sequence[GroupNumbers]) -> list[Part]:
    pages = -(-len(groups) // PAGE_SIZE)
    page = min(view.read_number("page", 1, 1), pages)
    heads, lines, problems = tabulate_groups(run, groups[(page - 1) * PAGE_SIZE : page * PAGE_SIZE])
    caption = f"{write_thousands(len(groups), 'group')}, oldest first; page {page} of {pages}."
    # The prompt is the same in every line.
    table: Part = (
        "linked_table",
        "All its groups",
        [*heads[:2], *heads[3:]],
        [[*cells[:2], *cells[3:]] for cells in lines],
        caption,
        problems,
    )
    if pages == 1:
        return [table]
    turns = [("previous", page - 1), ("next", page + 1)]
    return [table, ("turning", [(word, view.link(page=number) if 1 <= number <= pages else "") for word, number in turns])]
