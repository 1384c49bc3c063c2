"""The tables of docs/from-trl.md: options of TRL's GRPOConfig with the keys here, from the class itself and recipe/trl_names.py.

Options without a key here are listed by hand at the end of the page; tests/recipe/test_trl_names.py checks that none is missing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from cohort.recipe.file import format_value, list_leaf_fields, resolve_undotted, shorten_path
from cohort.recipe.schema import Recipe
from cohort.recipe.trl_names import COUNTING, TRL_NAMES, UNCLEAR, convert_value
from pages import format_row, read_page, replace_between

BEGIN = "<!-- Written by `make docs` from TRL's class and recipe/trl_names.py; edit there. -->"
END = "<!-- end -->"
LEAVES = dict(list_leaf_fields(Recipe))
KEYS = {path.rpartition(".")[2] for path in LEAVES} - {*UNCLEAR}


def make_page() -> str:
    """The text of docs/from-trl.md: the page as it is, with new tables between its two marks."""
    return replace_between(read_page("from-trl.md"), BEGIN, END, "\n\n" + "\n".join(write_lines()) + "\n\n")


def read_defaults() -> dict[str, Any]:
    """Option of GRPOConfig -> its default, None where there is none."""
    from trl.trainer.grpo_config import GRPOConfig  # seconds to load, and only this page needs it

    fields = dataclasses.fields(GRPOConfig)
    return {field.name: None if field.default is dataclasses.MISSING else field.default for field in fields}


def list_unanswered(defaults: dict[str, Any]) -> set[str]:
    """Options of GRPOConfig for which there is no key: those the page lists by hand."""
    return {name for name in defaults if name not in KEYS and name not in TRL_NAMES and name != "epsilon"}


def write_lines() -> Iterator[str]:
    defaults = read_defaults()
    same, other = [name for name in defaults if name in KEYS], [name for name in defaults if name in TRL_NAMES]
    absent = list_unanswered(defaults)
    yield f"Of {len(defaults)} options {len(same)} have the same name here, {len(other) + 1} another name, and {len(absent)} no counterpart."
    yield ""
    yield "| TRL | its default | here | TRL's default, as written here | default here |"
    yield "|---|---|---|---|---|"
    for name in same:
        path = resolve_undotted(name)
        yield write_row(name, defaults[name], path, {path: defaults[name]})
    clip = defaults["epsilon"]
    yield write_row("epsilon", clip, "algorithm.clip_low", {"algorithm.clip_low": clip, "algorithm.clip_high": clip})
    given = {name: default for name, default in defaults.items() if default is not None}
    for name in other:
        beside = {known: value for known, value in given.items() if known != name}
        yield write_row(name, defaults[name], TRL_NAMES[name], convert_value(name, defaults[name], beside))
    yield ""
    for name, rule in COUNTING.items():
        yield f"- `{name}`: {rule}."


def write_row(name: str, theirs: Any, path: str, values: dict[str, Any]) -> str:
    """One option: its name and default in TRL, the key here, TRL's default as it is typed here, and the default here."""
    default = format_value(LEAVES[path].get_default(call_default_factory=True)) if path in LEAVES else ""
    typed = " ".join(f"{shorten_path(key)}={format_value(value)}" for key, value in values.items())
    cells = (name, "None" if theirs is None else format_value(theirs), path, typed, default)
    return format_row(*(f"`{cell}`" if cell else "" for cell in cells))
