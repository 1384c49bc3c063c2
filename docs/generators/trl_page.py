"""The tables of docs/from-trl.md: every option of TRL's GRPOConfig, from the class itself and the words of recipe/foreign.toml."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from cohort.recipe.file import format_value, list_leaf_fields, resolve_undotted, shorten_path
from cohort.recipe.foreign import convert_value, explain_missing, explain_unclear, find_remark, list_translated, read_tables
from cohort.recipe.schema import Recipe
from pages import format_row, read_page, replace_between

BEGIN = "<!-- Written by `make docs` from TRL's class and recipe/foreign.toml; edit there. -->"
END = "<!-- end -->"
LEAVES = dict(list_leaf_fields(Recipe))
WORDS = {path.rpartition(".")[2] for path in LEAVES}
MEANT = {"epsilon": "clip_epsilon"}
"""Words that the command line finds unclear, and that mean one thing in GRPOConfig."""


@dataclasses.dataclass(frozen=True)
class Option:
    """What becomes of one option: same, other word or absent."""

    name: str
    status: str
    default: Any
    here: str = ""
    same_value: str = ""
    remark: str = ""


def make_page() -> str:
    """The text of docs/from-trl.md: the page as it is, with the tables between its two marks made anew."""
    return replace_between(read_page("from-trl.md"), BEGIN, END, "\n\n" + "\n".join(write_lines()) + "\n\n")


def list_options() -> tuple[list[Option], list[Option]]:
    """Those that GRPOConfig adds or changes, and those that it has from TrainingArguments."""
    from trl.trainer.grpo_config import GRPOConfig  # seconds to load, and only this page needs it

    fields = dataclasses.fields(GRPOConfig)
    beside = {field.name: field.default for field in fields if field.default not in (None, dataclasses.MISSING)}
    found = [
        explain_option(field.name, None if field.default is dataclasses.MISSING else field.default, beside) for field in fields
    ]
    own = {field.name for field in fields} & set(GRPOConfig.__annotations__)
    return [each for each in found if each.name in own], [each for each in found if each.name not in own]


def explain_option(name: str, default: Any, beside: dict[str, Any]) -> Option:
    """One option, by the answer that the command line would give to it."""
    if name in WORDS and not explain_unclear(name):
        path = resolve_undotted(name)
        return Option(name, "same", default, path, write_words({path: default}))
    word = MEANT.get(name, name)
    if word in list_translated():
        ours = convert_value(word, default, {key: value for key, value in beside.items() if key != name})
        return Option(name, "other word", default, list_translated()[word], write_words(ours), find_remark(word))
    remark = explain_unclear(name) or explain_missing(name)
    return Option(name, "absent", default, remark=remark.replace(read_tables()["cut"], "").strip())


def write_words(values: dict[str, Any]) -> str:
    """As they are typed."""
    return " ".join(f"{shorten_path(path)}={format_value(value)}" for path, value in values.items())


def write_lines() -> Iterator[str]:
    own, inherited = list_options()
    counts = {status: sum(each.status == status for each in [*own, *inherited]) for status in ("same", "other word", "absent")}
    yield f"Of {len(own) + len(inherited)} options {counts['same']} are the same word here, {counts['other word']} have another word,"
    yield f"and {counts['absent']} are absent."
    for title, options in (("What GRPOConfig adds", own), ("What it has from TrainingArguments", inherited)):
        yield ""
        yield f"### {title}"
        for status in counts:
            chosen = [each for each in options if each.status == status]
            yield ""
            yield f"**{status.capitalize()}** ({len(chosen)})"
            yield ""
            yield from write_absent(chosen) if status == "absent" else write_known(chosen)


def write_known(options: list[Option]) -> Iterator[str]:
    yield "| TRL | its default | here | TRL's default, written here | default here | |"
    yield "|---|---|---|---|---|---|"
    for each in options:
        field = LEAVES.get(each.here)
        default = format_value(field.get_default(call_default_factory=True)) if field is not None else ""
        theirs = "None" if each.default is None else format_value(each.default)
        cells = (each.name, theirs, each.here, each.same_value, default)
        yield format_row(*(f"`{cell}`" if cell else "" for cell in cells), each.remark)


def write_absent(options: list[Option]) -> Iterator[str]:
    yield "| TRL | what there is instead, or why not |"
    yield "|---|---|"
    grouped: dict[str, list[str]] = {}
    for each in options:
        grouped.setdefault(each.remark, []).append(each.name)
    yield from (format_row(", ".join(f"`{name}`" for name in names), remark) for remark, names in grouped.items())
