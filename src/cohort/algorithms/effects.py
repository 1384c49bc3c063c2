"""Which choices act beside which others: one that does not is accepted, and changes no bit of the training.

    idle(choices) -> choice -> why it has no effect here

A table of conditions, proved both ways by tests/algorithms/test_effects.py. It knows the section [algorithm] alone: that a clip range
meets no ratio but 1 where a step is one update ([train]) is no property of the algorithm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cohort.algorithms.presets import NEEDS_GROUP, SAMPLED

Choices = Mapping[str, Any]

DIVIDES = frozenset({"group_normalized", "batch_std", "batch_whitened", "process", "global_normalized", "gae"})
"""Advantages that divide by a standard deviation."""
DISCOUNTS = frozenset({"gae", "global_normalized"})
CLIPS = frozenset({"clip", "dual_clip", "sequence", "sequence_product"})
NEVER_NEGATIVE = frozenset({"binary", "uniform"})
"""Advantages of 0 and 1: nothing is pushed down."""
READS_SUCCESS = frozenset({"binary", "binary_signed", "uniform"})
"""Advantages that no reward enters."""

ALWAYS = frozenset({"name", "data", "advantage", "region", "kl_coef", "aggregation"})
"""Choices that act beside any others."""


@dataclass(frozen=True)
class Condition:
    choices: tuple[str, ...]
    holds: Callable[[Choices], bool]
    otherwise: str
    """Why the choices have no effect where it does not hold."""


CONDITIONS = (
    Condition(
        ("std_ddof", "std_epsilon"),
        lambda c: c["advantage"] in DIVIDES,
        f"only advantages that divide by a deviation use it: {', '.join(sorted(DIVIDES))}",
    ),
    Condition(("gamma",), lambda c: c["advantage"] in DISCOUNTS, "only advantage 'gae' and 'global_normalized' discount"),
    Condition(("gae_lambda",), lambda c: c["advantage"] == "gae", "only advantage 'gae' has a lambda"),
    Condition(
        ("clip_low", "clip_high"),
        lambda c: c["region"] in CLIPS,
        "only region 'clip', 'dual_clip', 'sequence' and 'sequence_product' clip",
    ),
    Condition(("dual_clip",), lambda c: c["region"] == "dual_clip", "only region 'dual_clip' clips twice"),
    # min(rho A, clip(rho) A) is rho A below the lower limit when A > 0: the pessimistic bound never takes it.
    Condition(
        ("clip_low", "dual_clip"),
        lambda c: c["advantage"] not in NEVER_NEGATIVE,
        "it holds tokens that are pushed down, and advantage 'binary' and 'uniform' push none down",
    ),
    Condition(("ratio_cap",), lambda c: c["region"] == "cispo", "only region 'cispo' caps the ratio"),
    Condition(("mismatch_weight",), lambda c: c["region"] != "dpo", "region 'dpo' has no mismatch weight"),
    Condition(
        ("mismatch_weight",),
        lambda c: c["data"] == "policy",
        "it corrects for the engine that samples the policy: only with data 'policy'",
    ),
    Condition(("mismatch_cap",), lambda c: c["mismatch_weight"] != "off", "mismatch_weight is off"),
    Condition(
        ("kl_estimator", "kl_in", "kl_corrected", "kl_target", "reference_every", "reference_decay"),
        lambda c: c["kl_coef"] > 0,
        "kl_coef is 0: there is no KL",
    ),
    Condition(
        ("kl_estimator", "kl_in", "kl_corrected", "kl_target"),
        lambda c: c["region"] != "dpo",
        "region 'dpo' holds the KL implicitly and estimates none",
    ),
    Condition(("kl_corrected",), lambda c: c["kl_in"] == "loss", "only a KL in the loss is corrected"),
    Condition(
        ("reference_every", "reference_decay"),
        lambda c: c["data"] != "start",
        "data 'start' is sampled from the reference, which stays",
    ),
    Condition(("entropy_coef",), lambda c: c["region"] != "dpo", "region 'dpo' has no entropy term"),
    Condition(
        ("refill_rounds", "prompt_choice", "choice_floor", "mask_truncated", "overlong_share", "zero_variance"),
        lambda c: c["data"] in SAMPLED,
        "only sampled completions are chosen, cut or in groups of equals: data 'policy' and 'start'",
    ),
    Condition(
        ("refill_rounds", "zero_variance"),
        lambda c: c["advantage"] in NEEDS_GROUP,
        "only advantages that compare within a group learn nothing from a group of equals",
    ),
    Condition(("zero_variance",), lambda c: c["region"] != "dpo", "region 'dpo' always leaves out groups of equals"),
    Condition(("choice_floor",), lambda c: c["prompt_choice"] == "informative", "only prompt_choice 'informative' has a floor"),
    Condition(
        ("overlong_share",),
        lambda c: c["advantage"] not in READS_SUCCESS,
        "it lowers the reward, and advantage 'binary', 'binary_signed' and 'uniform' read success alone",
    ),
)


def idle(choices: Choices) -> dict[str, str]:
    """Choice -> why it has no effect beside the others: {"gamma": "only advantage 'gae' and ... discount"}."""
    reasons: dict[str, str] = {}
    for condition in CONDITIONS:
        if not condition.holds(choices):
            for choice in condition.choices:
                reasons.setdefault(choice, condition.otherwise)
    return reasons
