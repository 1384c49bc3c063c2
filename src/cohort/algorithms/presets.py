"""Named algorithms as rows of choices, and the combinations that make no sense.

A preset is data: it expands into the recipe, and any choice can be overridden. What it does not name keeps the default
of the recipe (docs/recipe.md). The columns are DeepSeekMath's frame: where the data comes from, what is credited
(advantage), how far an update may go (region), how tokens are added up (aggregation), and what holds the policy back (KL).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    # DeepSeekMath, arXiv 2402.03300, eq. 3 and section 4.2.
    "grpo": {
        "advantage": "group_normalized",
        "region": "clip",
        "clip_low": 0.2,
        "clip_high": 0.2,
        "kl_coef": 0.04,
        "aggregation": "sequence_mean",
    },
    # DeepSeekMath section 4.1.3: the same with a reward per step; a token is credited with its own step and all later ones.
    "grpo_process": {
        "advantage": "process",
        "region": "clip",
        "clip_low": 0.2,
        "clip_high": 0.2,
        "kl_coef": 0.04,
        "aggregation": "sequence_mean",
    },
    # "Understanding R1-Zero-like training", arXiv 2503.20783: no length bias, no difficulty bias.
    "dr_grpo": {
        "advantage": "group_centered",
        "region": "clip",
        "clip_low": 0.2,
        "clip_high": 0.2,
        "kl_coef": 0.0,
        "aggregation": "constant",
    },
    # DAPO, arXiv 2503.14476: clip-higher, token-level loss, dynamic sampling, soft overlong penalty (4096 of 20480 tokens).
    "dapo": {
        "advantage": "group_normalized",
        "region": "clip",
        "clip_low": 0.2,
        "clip_high": 0.28,
        "kl_coef": 0.0,
        "aggregation": "token_mean",
        "refill_rounds": 3,
        "overlong_share": 0.2,
    },
    # REINFORCE++, arXiv 2501.03262: no group baseline at all; KL as a cost per token.
    "reinforce++": {
        "advantage": "global_normalized",
        "region": "clip",
        "clip_low": 0.2,
        "clip_high": 0.2,
        "kl_coef": 0.01,
        "kl_estimator": "k1",
        "kl_in": "token_reward",
        "aggregation": "token_mean",
    },
    # The same paper's variant for reasoning: group mean as baseline, then whitened over the batch.
    "reinforce++_baseline": {
        "advantage": "batch_whitened",
        "region": "clip",
        "clip_low": 0.2,
        "clip_high": 0.2,
        "kl_coef": 0.01,
        "kl_estimator": "k2",
        "aggregation": "token_mean",
    },
    # RLOO, arXiv 2402.14740: REINFORCE with the mean of the others as baseline; the completion is one action.
    "rloo": {
        "advantage": "leave_one_out",
        "region": "none",
        "kl_coef": 0.01,
        "kl_estimator": "k1",
        "kl_in": "completion_reward",
        "aggregation": "sequence_sum",
    },
    # GSPO, arXiv 2507.18071: one ratio per completion, the geometric mean of its tokens'.
    "gspo": {
        "advantage": "group_normalized",
        "region": "sequence",
        "clip_low": 3e-4,
        "clip_high": 4e-4,
        "kl_coef": 0.0,
        "aggregation": "sequence_mean",
    },
    # CISPO, MiniMax-M1, arXiv 2506.13585: the weight is capped and no token is dropped.
    "cispo": {
        "advantage": "group_normalized",
        "region": "cispo",
        "ratio_cap": 5.0,
        "kl_coef": 0.0,
        "aggregation": "token_mean",
    },
    # PPO, arXiv 1707.06347, as used for language models: a critic per token, KL as a cost per token.
    "ppo": {
        "advantage": "gae",
        "region": "clip",
        "clip_low": 0.2,
        "clip_high": 0.2,
        "gamma": 1.0,
        "gae_lambda": 0.95,
        "kl_coef": 0.01,
        "kl_estimator": "k1",
        "kl_in": "token_reward",
        "aggregation": "token_mean",
    },
    # Rejection sampling fine-tuning on completions of the policy as it is now (DeepSeekMath section 5).
    "online_rft": {"advantage": "binary", "region": "none", "kl_coef": 0.0, "aggregation": "token_mean"},
    # The same on completions of the policy the run started from.
    "rft": {"data": "start", "advantage": "binary", "region": "none", "kl_coef": 0.0, "aggregation": "token_mean"},
    "sft": {
        "data": "demonstrations",
        "advantage": "uniform",
        "region": "none",
        "kl_coef": 0.0,
        "aggregation": "token_mean",
    },
    # DPO, arXiv 2305.18290: kl_coef is its beta; data = "start" or "policy" builds pairs from rollouts.
    "dpo": {
        "data": "pairs",
        "advantage": "best_and_worst",
        "region": "dpo",
        "kl_coef": 0.1,
        "aggregation": "prompt_mean",
    },
}

NEEDS_GROUP = frozenset(
    {"group_normalized", "group_centered", "batch_std", "batch_whitened", "leave_one_out", "process", "best_and_worst"}
)
"""Advantages that compare a completion with others of its group."""
PER_TOKEN = frozenset({"global_normalized", "process", "gae"})
"""Advantages that may differ from token to token."""
SAMPLED = frozenset({"policy", "start"})
"""Data sources that sample: completions in groups, judged by the reward functions."""
ONE_VALUE_PER_COMPLETION = frozenset({"sequence", "sequence_product"})


def contradiction(choices: Mapping[str, Any]) -> str:
    """Why a combination of choices makes no sense, with the way out; "" when it does."""
    data, advantage, region = choices["data"], choices["advantage"], choices["region"]
    kl_on, kl_in, estimator = choices["kl_coef"] > 0, choices["kl_in"], choices["kl_estimator"]

    # Data and advantage.
    if data == "demonstrations" and advantage != "uniform":
        return (
            f'advantage {advantage!r} compares rewards, but demonstrations have none: use advantage = "uniform", or data = '
            '"policy" to train on rewarded completions.'
        )
    if advantage == "uniform" and data != "demonstrations":
        return (
            "advantage 'uniform' pushes every completion up, right or wrong: it fits data = \"demonstrations\" alone. For "
            'sampled completions use "binary", which pushes the right ones.'
        )
    if data == "pairs" and region != "dpo":
        return f"data 'pairs' holds chosen and rejected completions, which only region = \"dpo\" trains on (got {region!r})."

    # DPO.
    if (region == "dpo") != (advantage == "best_and_worst"):
        return (
            "region 'dpo' and advantage 'best_and_worst' belong together: the pair is the best and the worst completion of a "
            f"group (got region {region!r} with advantage {advantage!r})."
        )
    if region == "dpo" and not kl_on:
        return "region 'dpo' needs kl_coef > 0: it is DPO's beta (0.1 is usual), and with 0 its loss is constant."
    if region == "dpo" and (kl_in != "loss" or choices["kl_target"] or choices["kl_corrected"]):
        return "region 'dpo' holds the KL implicitly: leave kl_in, kl_target and kl_corrected at their defaults."
    if region == "dpo" and choices["aggregation"] != "prompt_mean":
        return "region 'dpo' has one loss per pair, and a pair is a group: set aggregation = \"prompt_mean\"."

    # Regions and aggregation.
    if region in ONE_VALUE_PER_COMPLETION and choices["aggregation"] != "sequence_mean":
        return (
            f"region {region!r} gives a completion one value, and aggregation {choices['aggregation']!r} would count it once per "
            'token: set aggregation = "sequence_mean".'
        )
    if region in ONE_VALUE_PER_COMPLETION and (advantage in ("process", "gae") or kl_in == "token_reward"):
        return (
            f"region {region!r} needs one advantage per completion, but these choices credit single tokens (advantage "
            f'{advantage!r}, kl_in {kl_in!r}): use region = "clip".'
        )
    if choices["mismatch_weight"] != "off" and data != "policy":
        return (
            f"mismatch_weight corrects for the engine that samples the policy, and data {data!r} is not sampled from it: set it "
            'to "off".'
        )
    if data == "start" and region not in ("none", "dpo"):
        return (
            f"data 'start' is never sampled again, so a ratio to the policy that sampled it only grows, and region {region!r} "
            'would soon hold every token: use region = "none" (rft) or "dpo".'
        )

    if region == "dual_clip" and choices["dual_clip"] < 1.0 + choices["clip_high"]:
        return "dual_clip lies inside the first clip: set it to more than 1 + clip_high (3 is usual)."

    # KL.
    if kl_on and kl_in == "loss" and estimator == "k1" and not choices["kl_corrected"] and region != "dpo":
        return (
            'kl_estimator \'k1\' in the loss has an expected gradient of exactly 0: it holds nothing. Use "k3" or "k2", set '
            "kl_corrected = true, or put it in the reward (kl_in)."
        )
    if kl_on and kl_in != "loss" and estimator != "k1":
        return (
            f"kl_in {kl_in!r} with kl_estimator {estimator!r}: in the reward only k1 has the gradient of the KL; k2 and k3 have "
            'almost none near the reference. Set kl_estimator = "k1".'
        )
    if choices["kl_corrected"] and kl_in != "loss":
        return "kl_corrected multiplies the KL in the loss; with kl_in in the reward there is none. Set kl_corrected = false."
    if kl_on and kl_in == "token_reward" and advantage not in ("global_normalized", "gae"):
        return (
            f"kl_in 'token_reward' gives every token a reward of its own, and advantage {advantage!r} takes one per completion: "
            'use "completion_reward", or advantage "global_normalized" or "gae".'
        )
    if kl_on and kl_in != "loss" and advantage in ("binary", "binary_signed", "uniform", "process"):
        return f'kl_in {kl_in!r} changes rewards, and advantage {advantage!r} does not read them so: use kl_in = "loss".'
    if choices["kl_target"] and not kl_on:
        return "kl_target adapts kl_coef, which is 0: start from a positive kl_coef (0.01 is usual)."
    if choices["reference_every"] and choices["reference_decay"]:
        return "reference_every and reference_decay both move the reference: choose one."
    if (choices["reference_every"] or choices["reference_decay"]) and not kl_on:
        return "reference_every and reference_decay move the reference, but with kl_coef = 0 there is none."
    if data == "start" and (choices["reference_every"] or choices["reference_decay"]):
        return "data 'start' samples from the policy the run started from, which is the reference: it cannot move."

    # Selection.
    if data not in SAMPLED and (choices["refill_rounds"] or choices["prompt_choice"] != "stream" or choices["overlong_share"]):
        return f"refill_rounds, prompt_choice and overlong_share act on sampled completions, and data {data!r} is not sampled."
    if choices["refill_rounds"] and advantage not in NEEDS_GROUP:
        return f"refill_rounds replaces groups without differences, but advantage {advantage!r} learns from those too: set it to 0."
    return ""
