"""The table of choices in docs/algorithms.md is generated from the registry and leaves nothing out."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from choices_page import TRAIT_WORDS, describe_traits, table_lines
from cohort.algorithms.named import FIELDS, NAMED
from cohort.algorithms.registry import TRAITS


def test_every_choice_has_its_inputs_and_keys():
    rows = [[re.findall(r"`([^`]+)`", cell) for cell in line.split(" | ")[:3]] for line in list(table_lines())[2:]]
    choices = [choice for named in NAMED.values() for choice in named.values()]
    assert rows == [
        [[f"{FIELDS[choice.kind]} = {choice.name}"], list(choice.reads), list(choice.parameters)] for choice in choices
    ]
    assert all(len(choice.sentence) > 20 for choice in choices)


def test_every_trait_has_distinct_wordings():
    traits = {trait.name for kind in TRAITS.values() for trait in fields(kind)}
    assert traits == set(TRAIT_WORDS) | {"fits"}
    for words in TRAIT_WORDS.values():
        assert len(set(words.values())) == len(words)


@pytest.mark.parametrize(
    ("kind", "name", "traits"),
    [
        ("advantage", "relative_to_mean", ""),
        ("advantage", "uniform", "needs no group; never negative; `data`: `demonstrations`"),
        ("advantage", "gae", "needs no group; per token; needs a critic"),
        ("region", "none", "no ratio"),
        ("region", "divergence", "uses the engine's log-probs; `mismatch_weight` stays off; on-policy loss −A"),
        ("aggregation", "constant", ""),
        ("kl", "k1", "in the loss: expected gradient 0; right in the reward"),
    ],
)
def test_a_row_in_words(kind, name, traits):
    assert describe_traits(NAMED[kind][name]) == traits
