"""docs/choices.md is written from the registry and leaves nothing out."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from choices_page import TITLES, TRAIT_WORDS, describe_traits, make_page, users_of
from cohort.algorithms.named import NAMED, list_parameter_words
from cohort.algorithms.presets import PRESETS
from cohort.algorithms.registry import READABLE, TRAITS


def rows_of(title: str) -> dict[str, list[str]]:
    """First cell -> the other cells, of the table under a heading."""
    (text,) = [part for part in make_page().split("\n## ") if part.startswith(f"{title}\n")]
    lines = [re.split(r" (?<!\\)\| ", line.strip("| ")) for line in text.splitlines() if line.startswith("| ")]
    return {cells[0].strip("`"): [cell.replace("\\|", "|") for cell in cells[1:]] for cells in lines[1:]}


def test_every_choice_stands_in_the_table_of_its_kind():
    for kind, choices in NAMED.items():
        rows = rows_of(TITLES[kind])
        assert list(rows) == list(choices)
        for name, choice in choices.items():
            assert rows[name][0] == choice.sentence
            assert len(choice.sentence) > 20, name
            assert re.findall(r"`(\w+)`", rows[name][1]) == list(choice.reads)


def test_every_word_that_a_choice_is_told_is_listed_with_its_meaning():
    rows = rows_of("Words")
    assert set(rows) == list_parameter_words()
    assert all(len(cells) == 5 and cells[-1] for cells in rows.values())
    inputs = [name for readable in READABLE.values() for name in readable]
    assert all(f"| `{name}` |" in make_page() for name in inputs)


def test_every_trait_is_said_and_its_values_are_told_apart():
    traits = {trait.name for kind in TRAITS.values() for trait in fields(kind)}
    assert traits == set(TRAIT_WORDS) | {"fits"}
    for words in TRAIT_WORDS.values():
        assert len(set(words.values())) == len(words)


@pytest.mark.parametrize(
    ("kind", "name", "facts", "users"),
    [
        ("advantage", "relative_to_mean", "compares with its group; fits data `policy`, `start`", ["maxrl"]),
        ("advantage", "gae", "needs no group; credits single tokens; fits data `policy`, `start`; needs a critic", ["ppo"]),
        ("region", "soft", "has a ratio to the policy that sampled", ["sapo"]),
        ("region", "none", "has no ratio", ["rloo", "online_rft", "rft", "opd", "sft"]),
        (
            "region",
            "divergence",
            "has a ratio to the policy that sampled; measures from the engine's own log-probs, so `mismatch_weight` stays off; "
            "on-policy its loss is −A",
            ["dppo"],
        ),
        ("aggregation", "constant", "", ["dr_grpo", "dppo"]),
        (
            "kl",
            "k1",
            "in the loss its expected gradient is 0; right in the reward",
            ["reinforce++", "rloo", "ppo"],
        ),
    ],
)
def test_a_row_in_words(kind, name, facts, users):
    choice = NAMED[kind][name]
    assert (describe_traits(choice), users_of(choice)) == (facts, users)


def test_a_word_in_words():
    assert rows_of("Words")["soft_down"][:4] == ["number", "`1.05`", "> 0", "`soft`"]
    assert rows_of("Words")["divergence_limit"][:4] == ["number", "`0.15`", "> 0, < 1", "`divergence`"]
    assert rows_of("Words")["std_ddof"][2] == "`0`, `1`"


def test_every_preset_uses_an_advantage_a_region_and_an_aggregation_of_the_page():
    for kind in ("advantage", "region", "aggregation"):
        used = [name for choice in NAMED[kind].values() for name in users_of(choice)]
        assert sorted(used) == sorted(PRESETS)
