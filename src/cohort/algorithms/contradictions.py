"""Combinations of choices that make no sense, each with the reason and the way out. Plain values in, a sentence or "" out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cohort.algorithms.presets import NEEDS_GROUP, SAMPLED

ONE_VALUE_PER_COMPLETION = frozenset({"sequence", "sequence_product"})
"""Regions that look at a completion as a whole."""

Choices = Mapping[str, Any]


def contradiction(choices: Choices) -> str:
    """Why a combination makes no sense; "" when it does."""
    rules = (about_data, about_preferences, about_regions, about_kl, about_kl_in_the_reward, about_references, about_selection)
    return next((reason for rule in rules if (reason := rule(choices))), "")


def about_data(choices: Choices) -> str:
    data, advantage, region = choices["data"], choices["advantage"], choices["region"]
    if data == "demonstrations" and advantage != "uniform":
        return (
            f"advantage {advantage!r} compares rewards, but demonstrations have none: use advantage = "
            '"uniform", or data = "policy" to train on rewarded completions.'
        )
    if advantage == "uniform" and data != "demonstrations":
        return (
            "advantage 'uniform' pushes every completion up, right or wrong: it fits "
            'data = "demonstrations" alone. For sampled completions use "binary", which pushes the right ones.'
        )
    if data == "pairs" and region != "dpo":
        return f"data 'pairs' holds chosen and rejected completions, which only region 'dpo' trains on (got {region!r})."
    if data == "start" and region not in ("none", "dpo"):
        return (
            f"data 'start' is never sampled again, so a ratio to the policy that sampled it only grows, and region {region!r} "
            'would soon hold every token: use region = "none" (rft) or "dpo".'
        )
    if data != "policy" and choices["mismatch_weight"] != "off":
        return (
            f"mismatch_weight corrects for the engine that samples the policy, and data {data!r} is not sampled from it: "
            'set it to "off".'
        )
    return ""


def about_preferences(choices: Choices) -> str:
    advantage, region = choices["advantage"], choices["region"]
    if (region == "dpo") != (advantage == "best_and_worst"):
        return (
            "region 'dpo' and advantage 'best_and_worst' belong together: the pair is the best and the worst completion of a "
            f"group (got region {region!r} with advantage {advantage!r})."
        )
    if region != "dpo":
        return ""
    if not choices["kl_coef"]:
        return "region 'dpo' needs kl_coef > 0: it is DPO's beta (0.1 is usual), and with 0 its loss is constant."
    if choices["kl_in"] != "loss" or choices["kl_target"] or choices["kl_corrected"]:
        return "region 'dpo' holds the KL implicitly: leave kl_in, kl_target and kl_corrected at their defaults."
    if choices["entropy_coef"] or choices["mismatch_weight"] != "off":
        return "region 'dpo' has no entropy term and no mismatch weight: set entropy_coef = 0 and mismatch_weight = 'off'."
    if choices["aggregation"] != "prompt_mean":
        return "region 'dpo' has one loss per pair, and a pair is a group: set aggregation = 'prompt_mean'."
    return ""


def about_regions(choices: Choices) -> str:
    advantage, region, kl_in = choices["advantage"], choices["region"], choices["kl_in"]
    if region == "dual_clip" and choices["dual_clip"] < 1.0 + choices["clip_high"]:
        return "dual_clip lies inside the first clip: set it to more than 1 + clip_high (3 is usual)."
    if region not in ONE_VALUE_PER_COMPLETION:
        return ""
    if choices["aggregation"] != "sequence_mean":
        return (
            f"region {region!r} gives a completion one value, and aggregation {choices['aggregation']!r} would count it once "
            'per token: set aggregation = "sequence_mean".'
        )
    discounted = advantage == "global_normalized" and choices["gamma"] < 1
    if advantage in ("process", "gae") or discounted or kl_in == "token_reward":
        return (
            f"region {region!r} needs one advantage per completion, but these choices credit single tokens (advantage "
            f"{advantage!r}, gamma {choices['gamma']:g}, kl_in {kl_in!r}): use region = 'clip'."
        )
    return ""


def about_kl(choices: Choices) -> str:
    """In the loss. What each estimator's gradient really is: tests/algorithms/test_kl.py."""
    estimator, corrected = choices["kl_estimator"], choices["kl_corrected"]
    if not choices["kl_coef"] or choices["kl_in"] != "loss" or choices["region"] == "dpo":
        return ""
    if estimator == "k1" and not corrected:
        return (
            "kl_estimator 'k1' in the loss has an expected gradient of exactly 0: it holds nothing. Use 'k3' or 'k2', set "
            "kl_corrected = true, or put it in the reward (kl_in)."
        )
    if estimator == "k2" and corrected:
        return (
            "kl_corrected with kl_estimator 'k2': k2 has the gradient of the KL as it is, and loses it when corrected. Set "
            "kl_corrected = false, or use 'k3'."
        )
    return ""


def about_kl_in_the_reward(choices: Choices) -> str:
    advantage, estimator, kl_in = choices["advantage"], choices["kl_estimator"], choices["kl_in"]
    if kl_in == "loss":
        return ""
    if choices["kl_corrected"]:
        return "kl_corrected multiplies the KL in the loss; with kl_in in the reward there is none. Set kl_corrected = false."
    if not choices["kl_coef"]:
        return ""
    if estimator != "k1":
        return (
            f"kl_in {kl_in!r} with kl_estimator {estimator!r}: in the reward only k1 has the gradient of the KL; k2 and k3 have "
            'almost none near the reference. Set kl_estimator = "k1".'
        )
    if advantage in ("binary", "binary_signed", "uniform", "process"):
        return f'kl_in {kl_in!r} changes rewards, and advantage {advantage!r} does not read them so: use kl_in = "loss".'
    if kl_in == "token_reward" and advantage not in ("global_normalized", "gae"):
        return (
            f"kl_in 'token_reward' gives every token a reward of its own, and advantage {advantage!r} takes one per completion: "
            'use "completion_reward", or advantage "global_normalized" or "gae".'
        )
    return ""


def about_references(choices: Choices) -> str:
    every, decay = choices["reference_every"], choices["reference_decay"]
    if choices["kl_target"] and not choices["kl_coef"]:
        return "kl_target adapts kl_coef, which is 0: start from a positive kl_coef (0.01 is usual)."
    if every and decay:
        return "reference_every and reference_decay both move the reference: choose one."
    if (every or decay) and not choices["kl_coef"]:
        return "reference_every and reference_decay move the reference, but with kl_coef = 0 there is none."
    if (every or decay) and choices["data"] == "start":
        return "data 'start' samples from the policy the run started from, which is the reference: it cannot move."
    return ""


def about_selection(choices: Choices) -> str:
    data, advantage = choices["data"], choices["advantage"]
    chosen = choices["refill_rounds"] or choices["prompt_choice"] != "stream" or choices["overlong_share"]
    if data not in SAMPLED and chosen:
        return f"refill_rounds, prompt_choice and overlong_share act on sampled completions, and data {data!r} is not sampled."
    if choices["zero_variance"] == "drop" and (data not in SAMPLED or advantage not in NEEDS_GROUP):
        return (
            f"zero_variance 'drop' takes groups of equals away, but advantage {advantage!r} learns from those too: set 'keep'."
        )
    if choices["refill_rounds"] and advantage not in NEEDS_GROUP:
        return f"refill_rounds replaces groups without differences, but advantage {advantage!r} learns from those too: set it to 0."
    return ""
