"""The table of choices in docs/algorithms.md, generated from the registry: inputs, keys and traits of each. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from cohort.algorithms.named import FIELDS, NAMED
from cohort.algorithms.registry import SAMPLED, Choice
from pages import format_row, read_page, replace_between

MARKS = ("<!-- choices:begin -->\n", "<!-- choices:end -->\n")
TRAIT_WORDS: dict[str, dict[Any, str]] = {
    "compares_group": {True: "", False: "needs no group"},
    "per_token": {True: "per token"},
    "never_negative": {True: "never negative"},
    "needs_teacher": {True: "needs a teacher"},
    "needs_ratio": {True: "", False: "no ratio"},
    "corrects_mismatch": {True: "uses the engine's log-probs; `mismatch_weight` stays off"},
    "idle_at_zero": {False: "also pushes tokens of advantage 0"},
    "zero_on_policy": {True: "on-policy loss −A"},
    "one_value": {True: "one value per completion"},
    "preference": {True: "compares the two completions of a pair"},
    "gradient": {
        "kl": "in the loss: gradient of the KL",
        "reverse": "in the loss: gradient of the other KL",
        "none": "in the loss: expected gradient 0",
    },
    "fits_reward": {True: "right in the reward", False: "wrong in the reward"},
}
"""Trait -> value -> wording; defaults and other values are not printed."""


def describe_traits(choice: Choice) -> str:
    """needs no group; per token; needs a critic"""
    found = []
    for trait in fields(choice.traits):
        value = getattr(choice.traits, trait.name)
        if trait.name != "fits":
            found.append(TRAIT_WORDS[trait.name].get(value, ""))
        elif value != SAMPLED:
            found.append("`data`: " + ", ".join(f"`{data}`" for data in sorted(value)))
    return "; ".join(filter(None, [*found, "needs a critic" if choice.reads_values else ""]))


def make_page() -> str:
    """The text of docs/algorithms.md with the table of choices between its marks regenerated."""
    return replace_between(read_page("algorithms.md"), *MARKS, "\n".join(table_lines()) + "\n")


def table_lines() -> Iterator[str]:
    yield "| choice | inputs | keys | traits |"
    yield "|---|---|---|---|"
    for kind, choices in NAMED.items():
        for name, choice in choices.items():
            inputs, keys = (", ".join(f"`{entry}`" for entry in entries) for entries in (choice.reads, choice.parameters))
            yield format_row(f"`{FIELDS[kind]} = {name}`", inputs, keys, describe_traits(choice))
