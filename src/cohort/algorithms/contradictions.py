"""Combinations of choices that make no sense, each with the reason and the way out. Plain values in, a sentence or "" out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cohort.algorithms.named import Chosen, Own, names_where
from cohort.algorithms.registry import SAMPLED


def contradiction(choices: Mapping[str, Any], own: Own | None = None) -> str:
    """Why a combination makes no sense; "" when it does, and while a user's function in it is not resolved."""
    chosen = Chosen.of(choices, own)
    if not chosen.known:
        return ""
    rules = (about_data, about_preferences, about_regions, about_kl, about_kl_in_the_reward, about_references, about_selection)
    return next((reason for rule in rules if (reason := rule(chosen))), "")


def about_data(chosen: Chosen) -> str:
    data, advantage, region = chosen.data, chosen.advantage, chosen.region
    fits = advantage.traits.fits
    if data == "demonstrations" and data not in fits:
        return (
            f"advantage {advantage.name!r} compares rewards, but demonstrations have none: use advantage = "
            '"uniform", or data = "policy" to train on rewarded completions.'
        )
    if data in SAMPLED and data not in fits:
        return (
            f"advantage {advantage.name!r} pushes every completion up, right or wrong: it fits "
            'data = "demonstrations" alone. For sampled completions use "binary", which pushes the right ones.'
        )
    if data == "pairs" and not region.traits.preference:
        return f"data 'pairs' holds chosen and rejected completions, which only region {preferences()} trains on (got {region.name!r})."
    if data == "start" and region.traits.needs_ratio:
        return (
            f"data 'start' is never sampled again, so a ratio to the policy that sampled it only grows, and region {region.name!r} "
            'would soon hold every token: use region = "none" (rft) or "dpo".'
        )
    if data not in SAMPLED and region.traits.corrects_mismatch:
        return (
            f"region {region.name!r} compares with the engine that sampled a token, and data {data!r} is not sampled: "
            'use region = "none".'
        )
    if data != "policy" and chosen.words["mismatch_weight"] != "off":
        return (
            f"mismatch_weight corrects for the engine that samples the policy, and data {data!r} is not sampled from it: "
            'set it to "off".'
        )
    return ""


def about_preferences(chosen: Chosen) -> str:
    advantage, region, choices = chosen.advantage, chosen.region, chosen.words
    if region.traits.preference != ("pairs" in advantage.traits.fits):
        return (
            f"region {preferences()} and advantage {pair_makers()} belong together: the pair is the best and the worst completion "
            f"of a group (got region {region.name!r} with advantage {advantage.name!r})."
        )
    if not region.traits.preference:
        return ""
    if not choices["kl_coef"]:
        return f"region {region.name!r} needs kl_coef > 0: it is DPO's beta (0.1 is usual), and with 0 its loss is constant."
    if choices["kl_in"] != "loss" or choices["kl_target"] or choices["kl_corrected"]:
        return f"region {region.name!r} holds the KL implicitly: leave kl_in, kl_target and kl_corrected at their defaults."
    if choices["entropy_coef"] or choices["mismatch_weight"] != "off":
        return f"region {region.name!r} has no entropy term and no mismatch weight: set entropy_coef = 0 and mismatch_weight = 'off'."
    if choices["aggregation"] != "prompt_mean":
        return f"region {region.name!r} has one loss per pair, and a pair is a group: set aggregation = 'prompt_mean'."
    return ""


def about_regions(chosen: Chosen) -> str:
    advantage, region, choices = chosen.advantage, chosen.region, chosen.words
    if {"dual_clip", "clip_high"} <= {*region.parameters} and choices["dual_clip"] < 1.0 + choices["clip_high"]:
        return "dual_clip lies inside the first clip: set it to more than 1 + clip_high (3 is usual)."
    if region.traits.corrects_mismatch and choices["mismatch_weight"] != "off":
        return (
            f"region {region.name!r} has the engine's probability in its ratio, and mismatch_weight {choices['mismatch_weight']!r} would "
            'correct for it once more: set mismatch_weight = "off".'
        )
    if not region.traits.one_value:
        return ""
    if choices["aggregation"] != "sequence_mean":
        return (
            f"region {region.name!r} gives a completion one value, and aggregation {choices['aggregation']!r} would count it once "
            'per token: set aggregation = "sequence_mean".'
        )
    # A return that is not discounted is the same at every token of a completion, where nothing but its reward enters.
    equal = advantage.reads == ("token_rewards_N",) and not advantage.digest and choices["gamma"] == 1
    if choices["kl_in"] == "token_reward" or (advantage.traits.per_token and not equal):
        return (
            f"region {region.name!r} needs one advantage per completion, but these choices credit single tokens (advantage "
            f"{advantage.name!r}, gamma {choices['gamma']:g}, kl_in {choices['kl_in']!r}): use region = 'clip'."
        )
    return ""


def about_kl(chosen: Chosen) -> str:
    """In the loss. What each estimator's gradient really is: tests/algorithms/test_kl.py."""
    estimator, choices = chosen.kl, chosen.words
    if not choices["kl_coef"] or choices["kl_in"] != "loss" or chosen.region.traits.preference:
        return ""
    if estimator.traits.gradient == "none" and not choices["kl_corrected"]:
        return (
            f"kl_estimator {estimator.name!r} in the loss has an expected gradient of exactly 0: it holds nothing. Use 'k3' or 'k2', set "
            "kl_corrected = true, or put it in the reward (kl_in)."
        )
    if estimator.traits.gradient == "kl" and choices["kl_corrected"]:
        return (
            f"kl_corrected with kl_estimator {estimator.name!r}: it has the gradient of the KL as it is, and loses it when corrected. Set "
            "kl_corrected = false, or use 'k3'."
        )
    return ""


def about_kl_in_the_reward(chosen: Chosen) -> str:
    advantage, estimator, choices = chosen.advantage, chosen.kl, chosen.words
    kl_in = choices["kl_in"]
    if kl_in == "loss":
        return ""
    if choices["kl_corrected"]:
        return "kl_corrected multiplies the KL in the loss; with kl_in in the reward there is none. Set kl_corrected = false."
    if not choices["kl_coef"]:
        return ""
    if not estimator.traits.fits_reward:
        return (
            f"kl_in {kl_in!r} with kl_estimator {estimator.name!r}: in the reward only k1 has the gradient of the KL; k2 and k3 have "
            'almost none near the reference. Set kl_estimator = "k1".'
        )
    if not advantage.reads_reward:
        return f'kl_in {kl_in!r} changes rewards, and advantage {advantage.name!r} does not read them so: use kl_in = "loss".'
    if kl_in == "token_reward" and "token_rewards_N" not in advantage.reads:
        return (
            f"kl_in 'token_reward' gives every token a reward of its own, and advantage {advantage.name!r} takes one per completion: "
            'use "completion_reward", or advantage "global_normalized" or "gae".'
        )
    return ""


def about_references(chosen: Chosen) -> str:
    choices = chosen.words
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


def about_selection(chosen: Chosen) -> str:
    data, advantage, choices = chosen.data, chosen.advantage, chosen.words
    compares = advantage.traits.compares_group
    selects = choices["refill_rounds"] or choices["prompt_choice"] != "stream" or choices["overlong_share"]
    if data not in SAMPLED and selects:
        return f"refill_rounds, prompt_choice and overlong_share act on sampled completions, and data {data!r} is not sampled."
    if choices["zero_variance"] == "drop" and (data not in SAMPLED or not compares):
        return f"zero_variance 'drop' takes groups of equals away, but advantage {advantage.name!r} learns from those too: set 'keep'."
    if choices["refill_rounds"] and not compares:
        return f"refill_rounds replaces groups without differences, but advantage {advantage.name!r} learns from those too: set it to 0."
    return ""


def preferences() -> str:
    return names_where("region", lambda choice: choice.traits.preference)


def pair_makers() -> str:
    return names_where("advantage", lambda choice: "pairs" in choice.traits.fits)
