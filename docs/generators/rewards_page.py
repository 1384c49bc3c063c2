"""The list of built-in rewards in docs/rewards.md, written from their names and first sentences."""

from __future__ import annotations

import inspect

from cohort.rewards import BUILT_IN
from pages import format_row, read_page, replace_between

BEGIN = "<!-- Written by `make docs` from the first lines of the functions; edit there. -->"
END = "<!-- end -->"


def make_page() -> str:
    """The text of docs/rewards.md: the page as it is, with the list between its two marks made anew."""
    return insert_list(read_page("rewards.md"))


def insert_list(page: str) -> str:
    """The page with the list of rewards between its two marks."""
    rows = []
    for name, function in BUILT_IN.items():
        first = (inspect.getdoc(function) or "").partition("\n")[0]
        rows.append(format_row(f"`{name}`", first.replace("<", "&lt;")))
    table = "\n".join(["| name | what it gives |", "|---|---|", *rows])
    return replace_between(page, BEGIN, END, f"\n\n{table}\n\n")
