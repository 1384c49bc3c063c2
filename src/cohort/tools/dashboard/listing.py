"""Lists of groups and completions as tables: numbers from the row index, texts from the files of the steps that are shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cohort.base.text import shorten_text
from cohort.errors import CohortError
from cohort.observe.report.frame import Cell
from cohort.observe.rollouts import Rows
from cohort.observe.terminal import write_question
from cohort.tools.dashboard.group_queries import GroupNumbers
from cohort.tools.dashboard.shelf import ShownRun
from cohort.tools.dashboard.step_files import find_recorded_groups, find_step_file, pick_step_rows

SNIPPET = 110
"""Characters of a text in a list."""
VERDICTS = {1: ("right", "✓", "right"), 0: ("wrong", "✗", "wrong"), -1: ("none", "–", "not judged")}
"""Verdict -> style, sign and word."""
MAX_SIGNS = 32
"""Verdicts of a group that are drawn in a list."""


@dataclass(frozen=True)
class Linked(Cell):
    """A cell of a list that leads somewhere."""

    link: str = ""
    signs: tuple[tuple[str, str, str], ...] = ()
    """(style, sign, word) before the text, as in VERDICTS."""


class Texts:
    """What the files of the steps say of single rows of a run: each file is opened once. What cannot be read is a sentence in `problems`."""

    def __init__(self, run: ShownRun, places: Iterable[tuple[int, int]], columns: Sequence[str]) -> None:
        """places: (step, row)."""
        self.problems: list[str] = []
        self._rows: dict[tuple[int, int], dict[str, Any]] = {}
        wanted: dict[int, set[int]] = {}
        for step, row in places:
            wanted.setdefault(step, set()).add(row)
        for step, rows in wanted.items():
            try:
                found = pick_step_rows(find_step_file(run, step), rows, columns)
                self._rows |= {(step, row): texts for row, texts in found.items()}
            except CohortError as problem:
                self.problems.append(str(problem))

    def read(self, step: int, row: int) -> Mapping[str, Any]:
        """The columns of a row; {} where it could not be read."""
        return self._rows.get((step, row), {})


Table = tuple[list[str], list[list[Linked]], list[str]]
"""Heads, lines, and what could not be read."""


def tabulate_groups(run: ShownRun, groups: Sequence[GroupNumbers]) -> Table:
    texts = Texts(run, [(one.step, one.first_row) for one in groups], ("prompt", "gold"))
    recorded = {step: find_recorded_groups(run, step) for step in {one.step for one in groups}}
    lines = []
    for one in groups:
        row = texts.read(one.step, one.first_row)
        signs = tuple(VERDICTS.get(verdict, VERDICTS[-1]) for verdict in one.verdicts[:MAX_SIGNS])
        lines.append(
            [
                Linked(str(one.step)),
                Linked(
                    f"group {one.group}",
                    note="tokens recorded" if one.group in recorded[one.step] else "",
                    link=f"{run.address}/group/{one.step}/{one.group}",
                ),
                Linked(
                    snip(write_question(str(row.get("prompt") or ""))), note=name_value("gold", row.get("gold")), style="text"
                ),
                Linked(f"{one.right} of {one.judged}" if one.judged else "not judged", signs=signs, style="signs"),
                Linked(write_number(one.mean)),
                Linked(write_number(one.std)),
                Linked(str(one.longest), note=f"{one.cut} cut" if one.cut else ""),
            ]
        )
    return ["step", "group", "prompt", "right", "mean reward", "std", "longest"], lines, texts.problems


def tabulate_completions(run: ShownRun, rows: Rows) -> Table:
    places = list(zip(rows["step"].tolist(), rows["row"].tolist(), strict=True))
    texts = Texts(run, places, ("prompt", "completion", "extracted", "gold"))
    lines = []
    for record in rows:
        step, group, sample = int(record["step"]), int(record["group"]), int(record["sample"])
        row = texts.read(step, int(record["row"]))
        style, sign, word = VERDICTS.get(int(record["success"]), VERDICTS[-1])
        answers = [name_value("answer", row.get("extracted")), name_value("gold", row.get("gold"))]
        lines.append(
            [
                Linked(str(step)),
                Linked(f"{group} · {sample}", link=f"{run.address}/group/{step}/{group}#sample-{sample}"),
                Linked(snip(write_question(str(row.get("prompt") or ""))), style="text brief"),
                Linked(snip(str(row.get("completion") or "")), note=" · ".join(filter(None, answers)), style="text"),
                Linked(word, signs=((style, sign, word),), style="signs"),
                Linked(write_number(float(record["reward"]))),
                Linked(write_signed(float(record["advantage"]))),
                Linked(
                    str(int(record["length"])),
                    note="cut" if record["end"] == 1 else "",
                    link=f"{run.address}/tokens/{step}/{group}/{sample}",
                ),
            ]
        )
    return ["step", "group · sample", "prompt", "completion", "verdict", "reward", "advantage", "tokens"], lines, texts.problems


def name_value(name: str, value: Any) -> str:
    """ "gold 46"; "" where there is none."""
    return "" if value is None else f"{name} {snip(str(value))}"


def snip(text: str) -> str:
    return shorten_text(text, SNIPPET, one_line=True)


def write_number(value: float | None) -> str:
    return "–" if value is None or np.isnan(value) else f"{value:.4g}"


def write_signed(value: float | None) -> str:
    if value is None or np.isnan(value):
        return "–"
    return "0" if value == 0 else f"{value:+.3g}"


def write_thousands(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
