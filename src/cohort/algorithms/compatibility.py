"""Which choices fit which others: what makes no sense is refused, what does not act beside the others is said to be idle.

    find_contradiction(choices) -> why the combination is refused, with the way out; "" where it makes sense
    explain_idle(choices)       -> choice -> why it has no effect here

A parameter of a function acts where a chosen function names it (registry.py). When the other choices act says one table, CONDITIONS:
where a condition does not hold, a switch that is on is refused, and anything else is accepted and changes no bit of the training.
tests/algorithms/test_effects.py proves both ways. The table knows the section [algorithm] alone, and whether there is a teacher: that
a clip range meets no ratio but 1 where a step is one update ([train]) is no property of the algorithm.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cohort.algorithms.named import NAMED, Chosen, Own, list_declared_words, list_names_where, list_parameter_words
from cohort.algorithms.registry import SAMPLED, Kind

ALWAYS = frozenset({"name", "data", "advantage", "region", "kl_coef", "aggregation", "args"})
"""Choices that act beside any others."""
LOWERED = {"rewards_PG", "token_rewards_N", "steps_N", "parts_PG"}
"""What a penalty on the reward shows up in."""
NUMBERS = ("kl_target", "reference_every", "reference_decay", "entropy_coef", "refill_rounds", "overlong_share")
UNWEIGHED = ("auto", "off")
"""Values of mismatch_weight with which no token is weighed: auto becomes another where a run has reason for it (recipe/user_functions.py)."""
WORDS = {"mismatch_weight": "off", "kl_in": "loss", "kl_corrected": False, "prompt_choice": "stream", "zero_variance": "keep"}
OFF: dict[str, Any] = dict.fromkeys(NUMBERS, 0) | WORDS
"""Choices that switch something on, and the value that is off."""

PREFERENCES = list_names_where("region", lambda choice: choice.traits.preference)
PAIR_MAKERS = list_names_where("advantage", lambda choice: "pairs" in choice.traits.fits)
TO_ENGINE = list_names_where("region", lambda choice: choice.traits.corrects_mismatch)
NEVER_NEGATIVE = list_names_where("advantage", lambda choice: choice.traits.never_negative)
NOT_LOWERED = list_names_where("advantage", lambda choice: not LOWERED & {*choice.reads})


@dataclass(frozen=True)
class ActingCondition:
    """When choices act."""

    choices: tuple[str, ...]
    holds: Callable[[Chosen], bool]
    otherwise: str
    """Why the choices have no effect where it does not hold; c is what is chosen."""
    refused: bool = True
    """Whether those of them that are switches (OFF) may then not be on."""


CONDITIONS = (
    # min(rho A, clip(rho) A) is rho A below the lower limit when A > 0: the pessimistic bound never takes it.
    ActingCondition(
        ("clip_low", "dual_clip", *(word.name for word in list_declared_words() if word.down_only)),
        lambda c: not c.advantage.traits.never_negative or c.taught,
        f"it holds tokens that are pushed down, and advantage {NEVER_NEGATIVE} push none down",
    ),
    ActingCondition(
        ("mismatch_weight",),
        lambda c: not c.region.traits.preference,
        f"region {PREFERENCES} has no mismatch weight",
    ),
    ActingCondition(
        ("mismatch_weight",),
        lambda c: not c.region.traits.corrects_mismatch,
        f"region {TO_ENGINE} has the engine in its ratio already",
    ),
    ActingCondition(
        ("mismatch_weight",),
        lambda c: c.data == "policy",
        "it corrects for the engine that samples the policy, and data {c.data!r} is not sampled from it",
    ),
    ActingCondition(("mismatch_cap",), lambda c: c.words["mismatch_weight"] not in UNWEIGHED, "mismatch_weight is off"),
    ActingCondition(
        ("kl_estimator", "kl_in", "kl_corrected"),
        lambda c: c.words["kl_coef"] > 0,
        "kl_coef is 0: there is no KL",
        refused=False,
    ),
    ActingCondition(
        ("kl_target", "reference_every", "reference_decay"),
        lambda c: c.words["kl_coef"] > 0,
        "kl_coef = 0: there is no KL, and a positive kl_coef (0.01 is usual) makes one",
    ),
    ActingCondition(
        ("kl_estimator", "kl_in", "kl_corrected", "kl_target"),
        lambda c: not c.region.traits.preference,
        f"region {PREFERENCES} holds the KL implicitly and estimates none",
    ),
    ActingCondition(
        ("kl_corrected",),
        lambda c: c.words["kl_in"] == "loss",
        "only a KL in the loss is corrected",
    ),
    ActingCondition(
        ("reference_every", "reference_decay"),
        lambda c: c.data != "start",
        "data 'start' is sampled from the reference, which cannot move",
    ),
    ActingCondition(
        ("entropy_coef",),
        lambda c: not c.region.traits.preference,
        f"region {PREFERENCES} has no entropy term",
    ),
    ActingCondition(
        ("refill_rounds", "prompt_choice", "choice_floor", "mask_truncated", "overlong_share", "zero_variance"),
        lambda c: c.data in SAMPLED,
        "data {c.data!r} is not sampled: nothing is chosen, cut or in groups of equals",
    ),
    ActingCondition(
        ("refill_rounds", "zero_variance"),
        lambda c: c.advantage.traits.compares_group,
        "advantage {c.advantage.name!r} learns from groups of equals too",
    ),
    ActingCondition(
        ("zero_variance",),
        lambda c: not c.region.traits.preference,
        f"region {PREFERENCES} always leaves out groups of equals",
        refused=False,
    ),
    ActingCondition(
        ("choice_floor",), lambda c: c.words["prompt_choice"] == "informative", "only prompt_choice 'informative' has a floor"
    ),
    ActingCondition(
        ("overlong_share",),
        lambda c: bool(LOWERED & {*c.advantage.reads}),
        f"it lowers the reward, and advantage {NOT_LOWERED} read success alone, or nothing",
        refused=False,
    ),
)


def has_kl_in_loss(c: Chosen) -> bool:
    return bool(c.words["kl_coef"]) and c.words["kl_in"] == "loss" and not c.region.traits.preference


def has_kl_in_reward(c: Chosen) -> bool:
    return bool(c.words["kl_coef"]) and c.words["kl_in"] != "loss" and not c.region.traits.preference


def credits_tokens(c: Chosen) -> bool:
    """Whether tokens of a completion can have different advantages. A return that is not discounted is the same at every one of them,
    where nothing but the completion's reward enters."""
    equal = c.advantage.reads == ("token_rewards_N",) and not c.advantage.digest and c.words["gamma"] == 1
    return c.words["kl_in"] == "token_reward" or (c.advantage.traits.per_token and not equal)


CONTRADICTIONS: tuple[tuple[Callable[[Chosen], bool], str], ...] = (
    (
        lambda c: c.data == "demonstrations" and c.data not in c.advantage.traits.fits,
        'advantage {c.advantage.name!r} compares rewards, but demonstrations have none: use advantage = "uniform", or data = "policy" '
        "to train on rewarded completions.",
    ),
    (
        lambda c: c.data in SAMPLED and c.data not in c.advantage.traits.fits,
        'advantage {c.advantage.name!r} pushes every completion up, right or wrong: it fits data = "demonstrations" alone. For sampled '
        'completions use "binary", which pushes the right ones.',
    ),
    (
        lambda c: c.data == "pairs" and not c.region.traits.preference,
        f"data 'pairs' holds chosen and rejected completions, which only region {PREFERENCES} trains on (got {{c.region.name!r}}).",
    ),
    (
        lambda c: c.data == "start" and c.region.traits.needs_ratio,
        "data 'start' is never sampled again, so a ratio to the policy that sampled it only grows, and region {c.region.name!r} would soon "
        'hold every token: use region = "none" (rft) or "dpo".',
    ),
    (
        lambda c: c.data not in SAMPLED and c.region.traits.corrects_mismatch,
        "region {c.region.name!r} compares with the engine that sampled a token, and data {c.data!r} is not sampled: "
        'use region = "none".',
    ),
    (
        lambda c: c.region.traits.preference != ("pairs" in c.advantage.traits.fits),
        f"region {PREFERENCES} and advantage {PAIR_MAKERS} belong together: the pair is the best and the worst completion "
        "of a group (got region {c.region.name!r} with advantage {c.advantage.name!r}).",
    ),
    (
        lambda c: c.region.traits.preference and not c.words["kl_coef"],
        "region {c.region.name!r} needs kl_coef > 0: it is DPO's beta (0.1 is usual), and with 0 its loss is constant.",
    ),
    (
        lambda c: c.region.traits.preference and c.words["aggregation"] != "prompt_mean",
        "region {c.region.name!r} has one loss per pair, and a pair is a group: set aggregation = 'prompt_mean'.",
    ),
    (
        lambda c: {"dual_clip", "clip_high"} <= {*c.region.parameters} and c.words["dual_clip"] < 1.0 + c.words["clip_high"],
        "dual_clip lies inside the first clip: set it to more than 1 + clip_high (3 is usual).",
    ),
    (
        lambda c: c.region.traits.one_value and c.words["aggregation"] != "sequence_mean",
        "region {c.region.name!r} gives a completion one value, and aggregation {c.words[aggregation]!r} would count it once "
        'per token: set aggregation = "sequence_mean".',
    ),
    (
        lambda c: c.region.traits.one_value and credits_tokens(c),
        "region {c.region.name!r} needs one advantage per completion, but these choices credit single tokens (advantage "
        "{c.advantage.name!r}, gamma {c.words[gamma]:g}, kl_in {c.words[kl_in]!r}): use region = 'clip'.",
    ),
    # What each estimator's gradient really is: tests/algorithms/test_kl.py.
    (
        lambda c: has_kl_in_loss(c) and c.kl.traits.gradient == "none" and not c.words["kl_corrected"],
        "kl_estimator {c.kl.name!r} in the loss has an expected gradient of exactly 0: it holds nothing. Use 'k3' or 'k2', set "
        "kl_corrected = true, or put it in the reward (kl_in).",
    ),
    (
        lambda c: has_kl_in_loss(c) and c.kl.traits.gradient == "kl" and c.words["kl_corrected"],
        "kl_corrected with kl_estimator {c.kl.name!r}: it has the gradient of the KL as it is, and loses it when corrected. Set "
        "kl_corrected = false, or use 'k3'.",
    ),
    (
        lambda c: has_kl_in_reward(c) and not c.kl.traits.fits_reward,
        "kl_in {c.words[kl_in]!r} with kl_estimator {c.kl.name!r}: in the reward only k1 has the gradient of the KL; k2 and k3 have "
        'almost none near the reference. Set kl_estimator = "k1".',
    ),
    (
        lambda c: has_kl_in_reward(c) and not c.advantage.reads_reward,
        'kl_in {c.words[kl_in]!r} changes rewards, and advantage {c.advantage.name!r} does not read them so: use kl_in = "loss".',
    ),
    (
        lambda c: has_kl_in_reward(c) and c.words["kl_in"] == "token_reward" and "token_rewards_N" not in c.advantage.reads,
        "kl_in 'token_reward' gives every token a reward of its own, and advantage {c.advantage.name!r} takes one per completion: "
        'use "completion_reward", or advantage "global_normalized" or "gae".',
    ),
    (
        lambda c: c.words["reference_every"] and c.words["reference_decay"],
        "reference_every and reference_decay both move the reference: choose one.",
    ),
)
"""Combinations that make no sense, and the reason with the way out."""


def find_contradiction(choices: Mapping[str, Any], own: Own | None = None) -> str:
    """Why a combination makes no sense; "" when it does, and while a user's function in it is not resolved."""
    chosen = Chosen.of(choices, own)
    if not chosen.known:
        return ""
    reasons = (reason.format(c=chosen) for found, reason in CONTRADICTIONS if found(chosen))
    return next(reasons, "") or next(refuse_switches(chosen), "")


def refuse_switches(chosen: Chosen) -> Iterator[str]:
    """A sentence for every switch that is on beside choices with which it does nothing."""
    for condition in CONDITIONS:
        if condition.refused and not condition.holds(chosen):
            for choice in condition.choices:
                value, off = chosen.words[choice], OFF.get(choice, chosen.words[choice])
                if value not in (off, *(UNWEIGHED if off in UNWEIGHED else ())):
                    reason = condition.otherwise.format(c=chosen)
                    yield f"{choice} {json.dumps(value)} does not fit: {reason}. Set {choice} = {json.dumps(off)}."


def explain_idle(choices: Mapping[str, Any], own: Own | None = None, *, taught: bool = False) -> dict[str, str]:
    """Choice -> why it has no effect beside the others: {"gamma": "it is read by advantage 'gae' alone"}.

    Of a user's function that is not resolved yet nothing is known, and nothing is said. taught: a teacher credits tokens too.
    """
    chosen = Chosen.of(choices, own, taught=taught)
    if not chosen.known:
        return {}
    told = {name for choice in chosen.all for name in choice.parameters}
    reasons = {word: f"it is read by {name_readers(word)} alone" for word in sorted(list_parameter_words() - told - ALWAYS)}
    for condition in CONDITIONS:
        if not condition.holds(chosen):
            for choice in condition.choices:
                reasons.setdefault(choice, condition.otherwise.format(c=chosen))
    # What a user's function does with a word that it names is its own affair, whatever else the word is for.
    asked = {name for choice in chosen.all if choice.digest for name in choice.parameters}
    return {word: reason for word, reason in reasons.items() if word not in asked}


def name_readers(word: str) -> str:
    """region 'clip', 'dual_clip' and 'sequence': the choices that are told a word."""
    kinds: tuple[Kind, ...] = tuple(NAMED)
    readers = {kind: list_names_where(kind, lambda choice: word in choice.parameters) for kind in kinds}
    return " and ".join(f"{kind} {names}" for kind, names in readers.items() if names)
