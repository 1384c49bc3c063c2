"""Which choices act beside which others: one that does not is accepted, and changes no bit of the training.

    idle(choices) -> choice -> why it has no effect here

A parameter of a function acts where a chosen function names it (registry.py). The rest is a table of conditions, proved both
ways by tests/algorithms/test_effects.py. It knows the section [algorithm] alone, and whether there is a teacher: that a clip range
meets no ratio but 1 where a step is one update ([train]) is no property of the algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cohort.algorithms.named import NAMED, Chosen, Own, declared_words, names_where, parameter_words
from cohort.algorithms.registry import SAMPLED, Kind

ALWAYS = frozenset({"name", "data", "advantage", "region", "kl_coef", "aggregation", "args"})
"""Choices that act beside any others."""
LOWERED = {"rewards_PG", "token_rewards_N", "steps_N", "parts_PG"}
"""What a penalty on the reward shows up in."""


@dataclass(frozen=True)
class Condition:
    choices: tuple[str, ...]
    holds: Callable[[Chosen], bool]
    otherwise: str
    """Why the choices have no effect where it does not hold."""


PREFERENCES = names_where("region", lambda choice: choice.traits.preference)
TO_ENGINE = names_where("region", lambda choice: choice.traits.corrects_mismatch)
NEVER_NEGATIVE = names_where("advantage", lambda choice: choice.traits.never_negative)

CONDITIONS = (
    # min(rho A, clip(rho) A) is rho A below the lower limit when A > 0: the pessimistic bound never takes it.
    Condition(
        ("clip_low", "dual_clip", *(word.name for word in declared_words() if word.down_only)),
        lambda c: not c.advantage.traits.never_negative or c.taught,
        f"it holds tokens that are pushed down, and advantage {NEVER_NEGATIVE} push none down",
    ),
    Condition(("mismatch_weight",), lambda c: not c.region.traits.preference, f"region {PREFERENCES} has no mismatch weight"),
    Condition(
        ("mismatch_weight",),
        lambda c: not c.region.traits.corrects_mismatch,
        f"region {TO_ENGINE} has the engine in its ratio already",
    ),
    Condition(
        ("mismatch_weight",),
        lambda c: c.data == "policy",
        "it corrects for the engine that samples the policy: only with data 'policy'",
    ),
    Condition(("mismatch_cap",), lambda c: c.words["mismatch_weight"] != "off", "mismatch_weight is off"),
    Condition(
        ("kl_estimator", "kl_in", "kl_corrected", "kl_target", "reference_every", "reference_decay"),
        lambda c: c.words["kl_coef"] > 0,
        "kl_coef is 0: there is no KL",
    ),
    Condition(
        ("kl_estimator", "kl_in", "kl_corrected", "kl_target"),
        lambda c: not c.region.traits.preference,
        f"region {PREFERENCES} holds the KL implicitly and estimates none",
    ),
    Condition(("kl_corrected",), lambda c: c.words["kl_in"] == "loss", "only a KL in the loss is corrected"),
    Condition(
        ("reference_every", "reference_decay"),
        lambda c: c.data != "start",
        "data 'start' is sampled from the reference, which stays",
    ),
    Condition(("entropy_coef",), lambda c: not c.region.traits.preference, f"region {PREFERENCES} has no entropy term"),
    Condition(
        ("refill_rounds", "prompt_choice", "choice_floor", "mask_truncated", "overlong_share", "zero_variance"),
        lambda c: c.data in SAMPLED,
        "only sampled completions are chosen, cut or in groups of equals: data 'policy' and 'start'",
    ),
    Condition(
        ("refill_rounds", "zero_variance"),
        lambda c: c.advantage.traits.compares_group,
        "only advantages that compare within a group learn nothing from a group of equals",
    ),
    Condition(
        ("zero_variance",), lambda c: not c.region.traits.preference, f"region {PREFERENCES} always leaves out groups of equals"
    ),
    Condition(
        ("choice_floor",), lambda c: c.words["prompt_choice"] == "informative", "only prompt_choice 'informative' has a floor"
    ),
    Condition(
        ("overlong_share",),
        lambda c: bool(LOWERED & {*c.advantage.reads}),
        "it lowers the reward, and advantage "
        + names_where("advantage", lambda choice: not LOWERED & {*choice.reads})
        + " read success alone, or nothing",
    ),
)


def idle(choices: Mapping[str, Any], own: Own | None = None, *, taught: bool = False) -> dict[str, str]:
    """Choice -> why it has no effect beside the others: {"gamma": "it is read by advantage 'gae' alone"}.

    Of a user's function that is not resolved yet nothing is known, and nothing is said. taught: a teacher credits tokens too.
    """
    chosen = Chosen.of(choices, own, taught=taught)
    if not chosen.known:
        return {}
    told = {name for choice in chosen.all for name in choice.parameters}
    reasons = {word: f"it is read by {who_reads(word)} alone" for word in sorted(parameter_words() - told - ALWAYS)}
    for condition in CONDITIONS:
        if not condition.holds(chosen):
            for choice in condition.choices:
                reasons.setdefault(choice, condition.otherwise)
    # What a user's function does with a word that it names is its own affair, whatever else the word is for.
    asked = {name for choice in chosen.all if choice.digest for name in choice.parameters}
    return {word: reason for word, reason in reasons.items() if word not in asked}


def who_reads(word: str) -> str:
    """region 'clip', 'dual_clip' and 'sequence': the choices that are told a word."""
    kinds: tuple[Kind, ...] = tuple(NAMED)
    readers = {kind: names_where(kind, lambda choice: word in choice.parameters) for kind in kinds}
    return " and ".join(f"{kind} {names}" for kind, names in readers.items() if names)
