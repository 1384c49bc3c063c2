"""docs/choices.md, written from the registry: every choice with its sentence, what it reads, its words and its presets. No torch.

A test holds the file to it. The formulas are in docs/algorithms.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from cohort.algorithms.named import FIELDS, NAMED, list_parameter_words
from cohort.algorithms.presets import PRESETS
from cohort.algorithms.registry import READABLE, Choice, Kind
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.words import list_used, read_preset
from pages import format_row
from recipe_page import allowed_words, default_words, type_words

INTRODUCTION = """\
# The choices

<!-- Written by `make docs` from src/cohort/algorithms; edit there. -->

An algorithm is a row of named choices. Each is one function, and this page says what is known of it: what it does, what it
is given, which words of `[algorithm]` it is told, and which presets use it. Formulas, tests and measurements are in
[algorithms](algorithms.md), all other keys in [the recipe](recipe.md).
"""
TITLES: dict[Kind, str] = {
    "advantage": "Advantages",
    "region": "Regions",
    "aggregation": "Aggregations",
    "kl": "KL estimators",
}
TRAIT_WORDS: dict[str, dict[Any, str]] = {
    "compares_group": {True: "compares with its group", False: "needs no group"},
    "per_token": {True: "credits single tokens"},
    "never_negative": {True: "pushes nothing down"},
    "needs_teacher": {True: "needs a teacher"},
    "needs_ratio": {True: "has a ratio to the policy that sampled", False: "has no ratio"},
    "corrects_mismatch": {True: "measures from the engine's own log-probs, so `mismatch_weight` stays off"},
    "idle_at_zero": {False: "pushes tokens of advantage 0 too"},
    "zero_on_policy": {True: "on-policy its loss is −A"},
    "one_value": {True: "one value per completion"},
    "preference": {True: "compares the two completions of a pair"},
    "gradient": {
        "kl": "in the loss it has the gradient of the KL",
        "reverse": "in the loss it has the gradient of the KL the other way round",
        "none": "in the loss its expected gradient is 0",
    },
    "fits_reward": {True: "right in the reward", False: "wrong in the reward"},
}
"""Trait -> value -> how it is said; what is not here goes without saying."""


def describe_traits(choice: Choice) -> str:
    """compares with its group; fits data `policy`, `start`"""
    found = []
    for trait in fields(choice.traits):
        value = getattr(choice.traits, trait.name)
        if trait.name == "fits":
            found.append("fits data " + ", ".join(f"`{data}`" for data in sorted(value)))
        else:
            found.append(TRAIT_WORDS[trait.name].get(value, ""))
    return "; ".join(filter(None, [*found, "needs a critic" if choice.reads_values else ""]))


def users_of(choice: Choice) -> list[str]:
    """Presets in which a choice acts."""
    return [name for name in PRESETS if list_used(read_preset(name)).get(FIELDS[choice.kind]) == choice.name]


def make_page() -> str:
    """The text of docs/choices.md."""
    return (
        "\n".join([INTRODUCTION, *(line for kind in NAMED for line in kind_lines(kind)), *word_lines(), *input_lines()]) + "\n"
    )


def kind_lines(kind: Kind) -> Iterator[str]:
    yield f"## {TITLES[kind]}"
    yield ""
    yield f"The words of `{FIELDS[kind]}`."
    yield ""
    yield "| name | what it does | reads | is told | facts | presets |"
    yield "|---|---|---|---|---|---|"
    for name, choice in NAMED[kind].items():
        lists = (choice.reads, choice.parameters, users_of(choice))
        reads, told, users = (", ".join(f"`{entry}`" for entry in entries) for entries in lists)
        yield format_row(f"`{name}`", choice.sentence, reads, told, describe_traits(choice), users)
    yield ""


def word_lines() -> Iterator[str]:
    yield "## Words"
    yield ""
    yield "What the choices above are told, each a key of `[algorithm]`."
    yield ""
    yield "| word | type | default | allowed | told to | meaning |"
    yield "|---|---|---|---|---|---|"
    for word, field in AlgorithmConfig.model_fields.items():
        if word in list_parameter_words():
            told = [f"`{name}`" for choices in NAMED.values() for name, choice in choices.items() if word in choice.parameters]
            kind, default, allowed = type_words(field.annotation), default_words(field), allowed_words(field)
            yield format_row(f"`{word}`", kind, default, allowed, ", ".join(told), field.description or "")
    yield ""


def input_lines() -> Iterator[str]:
    yield "## What they read"
    yield ""
    yield "A function is given what it names. P prompts, G completions of each, N completions, M trained tokens laid flat."
    yield ""
    yield "| kind | name | what it is |"
    yield "|---|---|---|"
    for kind, readable in READABLE.items():
        yield from (format_row(kind, f"`{name}`", meaning) for name, meaning in readable.items())
