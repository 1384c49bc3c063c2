"""Which choices fit together: senseless combinations are refused, and settings without effect are reported as idle.

    find_contradiction(settings) -> why the combination is refused, and a fix; "" if it makes sense
    explain_idle(settings)       -> setting -> why it has no effect here

A parameter of a function has an effect if a chosen function names it (registry.py). CONDITIONS lists when the other settings have one:
where a condition does not hold, a switch that is on is refused, and any other setting is accepted and changes no bit of the training.
tests/algorithms/test_effects.py proves both directions. The conditions cover only [algorithm] and whether there is a teacher: that the
ratio is always 1 where a step is one update depends on [train], not on the algorithm.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cohort.algorithms.named import NAMED, Chosen, Own, list_declared_settings, list_names_where, list_parameters
from cohort.algorithms.registry import SAMPLED, Kind

ALWAYS = frozenset({"name", "data", "advantage", "region", "kl_coef", "aggregation", "args"})
"""Settings that always have an effect."""
LOWERED = {"rewards_PG", "token_rewards_N", "steps_N", "turns_N", "parts_PG"}
"""Inputs of an advantage that include a penalty on the reward."""
NUMBERS = ("kl_target", "reference_every", "reference_decay", "entropy_coef", "refill_rounds", "overlong_share")
UNWEIGHED = ("auto", "off")
"""Values of mismatch_weight that weigh no token; recipe/user_functions.py resolves auto when a run starts."""
SWITCHES = {
    "mismatch_weight": "off",
    "kl_in": "loss",
    "kl_corrected": False,
    "prompt_choice": "stream",
    "zero_variance": "keep",
}
OFF: dict[str, Any] = dict.fromkeys(NUMBERS, 0) | SWITCHES
"""Settings that switch something on, and the value that means off."""

PREFERENCES = list_names_where("region", lambda choice: choice.traits.preference)
PAIR_MAKERS = list_names_where("advantage", lambda choice: "pairs" in choice.traits.fits)
TO_ENGINE = list_names_where("region", lambda choice: choice.traits.corrects_mismatch)
NEVER_NEGATIVE = list_names_where("advantage", lambda choice: choice.traits.never_negative)
NOT_LOWERED = list_names_where("advantage", lambda choice: not LOWERED & {*choice.reads})


@dataclass(frozen=True)
class Condition:
    """When settings have an effect."""

    choices: tuple[str, ...]
    holds: Callable[[Chosen], bool]
    otherwise: str
    """Why the settings have no effect where it does not hold; c is the Chosen."""
    refused: bool = True
    """Whether a switch (OFF) that is on is then refused."""


CONDITIONS = (
    # min(rho A, clip(rho) A) is rho A below the lower limit when A > 0: the pessimistic bound never takes it.
    Condition(
        ("clip_low", "dual_clip", *(setting.name for setting in list_declared_settings() if setting.down_only)),
        lambda c: not c.advantage.traits.never_negative or c.taught,
        f"it limits tokens with negative advantages, and advantage {NEVER_NEGATIVE} give none",
    ),
    Condition(("mismatch_weight",), lambda c: not c.region.traits.preference, f"region {PREFERENCES} has no mismatch weight"),
    Condition(
        ("mismatch_weight",),
        lambda c: not c.region.traits.corrects_mismatch,
        f"the ratio of region {TO_ENGINE} already includes the engine",
    ),
    Condition(
        ("mismatch_weight",),
        lambda c: c.data == "policy",
        "it corrects for the engine that samples from the policy, and data {c.data!r} is not sampled from it",
    ),
    Condition(("mismatch_cap",), lambda c: c.settings["mismatch_weight"] not in UNWEIGHED, "mismatch_weight is off"),
    Condition(
        ("kl_estimator", "kl_in", "kl_corrected"),
        lambda c: c.settings["kl_coef"] > 0,
        "kl_coef is 0, so there is no KL",
        refused=False,
    ),
    Condition(
        ("kl_target", "reference_every", "reference_decay"),
        lambda c: c.settings["kl_coef"] > 0,
        "kl_coef is 0, so there is no KL; a positive kl_coef (0.01 is usual) adds one",
    ),
    Condition(
        ("kl_estimator", "kl_in", "kl_corrected", "kl_target"),
        lambda c: not c.region.traits.preference,
        f"region {PREFERENCES} has an implicit KL and estimates none",
    ),
    Condition(("kl_corrected",), lambda c: c.settings["kl_in"] == "loss", "only a KL in the loss is corrected"),
    Condition(
        ("reference_every", "reference_decay"),
        lambda c: c.data != "start",
        "data 'start' is sampled from the reference, which must not change",
    ),
    Condition(("entropy_coef",), lambda c: not c.region.traits.preference, f"region {PREFERENCES} has no entropy term"),
    Condition(
        ("refill_rounds", "prompt_choice", "choice_floor", "mask_truncated", "overlong_share", "zero_variance"),
        lambda c: c.data in SAMPLED,
        "data {c.data!r} is not sampled, so there is no choice of prompts, no truncation and no group with equal rewards",
    ),
    Condition(
        ("refill_rounds", "zero_variance"),
        lambda c: c.advantage.traits.compares_group,
        "advantage {c.advantage.name!r} also learns from groups with equal rewards",
    ),
    Condition(
        ("zero_variance",),
        lambda c: not c.region.traits.preference,
        f"region {PREFERENCES} always excludes groups with equal rewards",
        refused=False,
    ),
    Condition(
        ("choice_floor",), lambda c: c.settings["prompt_choice"] == "informative", "only prompt_choice 'informative' uses it"
    ),
    Condition(
        ("overlong_share",),
        lambda c: bool(LOWERED & {*c.advantage.reads}),
        f"it lowers the reward, and advantage {NOT_LOWERED} use only success, or no reward at all",
        refused=False,
    ),
)


def has_kl_in_loss(c: Chosen) -> bool:
    return bool(c.settings["kl_coef"]) and c.settings["kl_in"] == "loss" and not c.region.traits.preference


def has_kl_in_reward(c: Chosen) -> bool:
    return bool(c.settings["kl_coef"]) and c.settings["kl_in"] != "loss" and not c.region.traits.preference


def credits_tokens(c: Chosen) -> bool:
    """Whether tokens of a completion can have different advantages. An undiscounted return is the same for all of them if it
    contains only the reward of the completion."""
    equal = c.advantage.reads == ("token_rewards_N",) and not c.advantage.digest and c.settings["gamma"] == 1
    return c.settings["kl_in"] == "token_reward" or (c.advantage.traits.per_token and not equal)


CONTRADICTIONS: tuple[tuple[Callable[[Chosen], bool], str], ...] = (
    (
        lambda c: c.data == "demonstrations" and c.data not in c.advantage.traits.fits,
        'advantage {c.advantage.name!r} compares rewards, but demonstrations have none: use advantage = "uniform", or data = "policy" '
        "to train on rewarded completions.",
    ),
    (
        lambda c: c.data in SAMPLED and c.data not in c.advantage.traits.fits,
        'advantage {c.advantage.name!r} raises the probability of every completion, right or wrong: it fits only data = "demonstrations". For sampled '
        'completions use "binary", which raises only the right ones.',
    ),
    (
        lambda c: c.data == "pairs" and not c.region.traits.preference,
        f"data 'pairs' holds chosen and rejected completions, which only region {PREFERENCES} supports (got {{c.region.name!r}}).",
    ),
    (
        lambda c: c.data == "start" and c.region.traits.needs_ratio,
        "data 'start' is never sampled again, so the ratio to the policy that sampled it keeps growing, and region {c.region.name!r} would "
        'soon clip every token: use region = "none" (rft) or "dpo".',
    ),
    (
        lambda c: c.data not in SAMPLED and c.region.traits.corrects_mismatch,
        "region {c.region.name!r} needs the log-probs of the engine that sampled, and data {c.data!r} is not sampled: "
        'use region = "none".',
    ),
    (
        lambda c: c.region.traits.preference != ("pairs" in c.advantage.traits.fits),
        f"region {PREFERENCES} and advantage {PAIR_MAKERS} belong together: the pair is the best and the worst completion "
        "of a group (got region {c.region.name!r} with advantage {c.advantage.name!r}).",
    ),
    (
        lambda c: c.region.traits.preference and not c.settings["kl_coef"],
        "region {c.region.name!r} needs kl_coef > 0: it is DPO's beta (0.1 is usual), and with 0 its loss is constant.",
    ),
    (
        lambda c: c.region.traits.preference and c.settings["aggregation"] != "prompt_mean",
        "region {c.region.name!r} has one loss per pair, and a pair is a group: set aggregation = 'prompt_mean'.",
    ),
    (
        lambda c: (
            {"dual_clip", "clip_high"} <= {*c.region.parameters} and c.settings["dual_clip"] < 1.0 + c.settings["clip_high"]
        ),
        "dual_clip must be larger than 1 + clip_high, or it lies inside the first clip (3 is usual).",
    ),
    (
        lambda c: c.region.traits.one_value and c.settings["aggregation"] != "sequence_mean",
        "region {c.region.name!r} has one value per completion, and aggregation {c.settings[aggregation]!r} would count it once "
        'per token: set aggregation = "sequence_mean".',
    ),
    (
        lambda c: c.region.traits.one_value and credits_tokens(c),
        "region {c.region.name!r} needs one advantage per completion, but these choices credit single tokens (advantage "
        "{c.advantage.name!r}, gamma {c.settings[gamma]:g}, kl_in {c.settings[kl_in]!r}): use region = 'clip'.",
    ),
    # What each estimator's gradient really is: tests/algorithms/test_kl.py.
    (
        lambda c: has_kl_in_loss(c) and c.kl.traits.gradient == "none" and not c.settings["kl_corrected"],
        "kl_estimator {c.kl.name!r} in the loss has an expected gradient of exactly 0, so it has no effect. Use 'k3' or 'k2', set "
        "kl_corrected = true, or put it in the reward (kl_in).",
    ),
    (
        lambda c: has_kl_in_loss(c) and c.kl.traits.gradient == "kl" and c.settings["kl_corrected"],
        "kl_corrected with kl_estimator {c.kl.name!r}: its gradient is already that of the KL, and the correction would change it. Set "
        "kl_corrected = false, or use 'k3'.",
    ),
    (
        lambda c: has_kl_in_reward(c) and not c.kl.traits.fits_reward,
        "kl_in {c.settings[kl_in]!r} with kl_estimator {c.kl.name!r}: in the reward only k1 has the gradient of the KL; that of k2 and k3 "
        'is almost 0 near the reference. Set kl_estimator = "k1".',
    ),
    (
        lambda c: has_kl_in_reward(c) and not c.advantage.reads_reward,
        'kl_in {c.settings[kl_in]!r} changes the rewards, and advantage {c.advantage.name!r} does not use them: use kl_in = "loss".',
    ),
    (
        lambda c: has_kl_in_reward(c) and c.settings["kl_in"] == "token_reward" and "token_rewards_N" not in c.advantage.reads,
        "kl_in 'token_reward' gives every token its own reward, and advantage {c.advantage.name!r} uses one per completion: "
        'use "completion_reward", or advantage "global_normalized" or "gae".',
    ),
    (
        lambda c: c.settings["reference_every"] and c.settings["reference_decay"],
        "reference_every and reference_decay both change the reference: set only one.",
    ),
)
"""Combinations that make no sense, each with the reason and a fix."""


def find_contradiction(choices: Mapping[str, Any], own: Own | None = None) -> str:
    """Why a combination makes no sense; "" if it does, or if one of the user's functions is not resolved yet."""
    chosen = Chosen.of(choices, own)
    if not chosen.known:
        return ""
    reasons = (reason.format(c=chosen) for found, reason in CONTRADICTIONS if found(chosen))
    return next(reasons, "") or next(refuse_switches(chosen), "")


def refuse_switches(chosen: Chosen) -> Iterator[str]:
    """A sentence for every switch that is on and has no effect with the other choices."""
    for condition in CONDITIONS:
        if condition.refused and not condition.holds(chosen):
            for choice in condition.choices:
                value, off = chosen.settings[choice], OFF.get(choice, chosen.settings[choice])
                if value not in (off, *(UNWEIGHED if off in UNWEIGHED else ())):
                    reason = condition.otherwise.format(c=chosen)
                    yield f"{choice} {json.dumps(value)} does not fit: {reason}. Set {choice} = {json.dumps(off)}."


def explain_idle(choices: Mapping[str, Any], own: Own | None = None, *, taught: bool = False) -> dict[str, str]:
    """Setting -> why it has no effect with the other choices: {"gamma": "used only by advantage 'gae'"}.

    Empty while a user's function is not resolved. taught: a teacher credits tokens too.
    """
    chosen = Chosen.of(choices, own, taught=taught)
    if not chosen.known:
        return {}
    used = {name for choice in chosen.all for name in choice.parameters}
    reasons = {name: f"used only by {name_readers(name)}" for name in sorted(list_parameters() - used - ALWAYS)}
    for condition in CONDITIONS:
        if not condition.holds(chosen):
            for choice in condition.choices:
                reasons.setdefault(choice, condition.otherwise.format(c=chosen))
    # A setting that a user's function names has an effect, whatever its usual condition is.
    own_parameters = {name for choice in chosen.all if choice.digest for name in choice.parameters}
    return {name: reason for name, reason in reasons.items() if name not in own_parameters}


def name_readers(parameter: str) -> str:
    """ "region 'clip', 'dual_clip' and 'sequence'": the choices that have this parameter."""
    kinds: tuple[Kind, ...] = tuple(NAMED)
    readers = {kind: list_names_where(kind, lambda choice: parameter in choice.parameters) for kind in kinds}
    return " and ".join(f"{kind} {names}" for kind, names in readers.items() if names)
