"""Named algorithms as rows of choices.

A preset is data: it expands into the recipe, and any choice can be overridden. What it does not name keeps the default
of the recipe (docs/recipe.md). The columns are DeepSeekMath's frame: where the data comes from, what is credited
(advantage), how far an update may go (region), how tokens are added up (aggregation), and what holds the policy back (KL).
"""

from __future__ import annotations

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
    # SAPO, arXiv 2511.20347: no clip; the push fades as the ratio leaves 1, a little sooner where it pushes down.
    "sapo": {
        "advantage": "group_normalized",
        "region": "soft",
        "soft_up": 1.0,
        "soft_down": 1.05,
        "kl_coef": 0.0,
        "aggregation": "sequence_mean",
    },
    # DPPO, arXiv 2602.04879: the probability of a token is held, not its ratio; measured from the engine that sampled.
    "dppo": {
        "advantage": "group_centered",
        "region": "divergence",
        "divergence_limit": 0.15,
        "kl_coef": 0.0,
        "aggregation": "constant",
    },
    # MaxRL, arXiv 2602.02710: success against the group's mean success, so that hard prompts weigh most.
    "maxrl": {
        "advantage": "relative_to_mean",
        "region": "clip",
        "clip_low": 0.2,
        "clip_high": 0.2,
        "kl_coef": 0.0,
        "aggregation": "token_mean",
    },
    # GDPO, arXiv 2601.05242: every reward part is normalised by itself before they are added.
    "gdpo": {
        "advantage": "parts_normalized",
        "region": "clip",
        "clip_low": 0.2,
        "clip_high": 0.2,
        "kl_coef": 0.0,
        "aggregation": "sequence_mean",
    },
    # Lite PPO, "Tricks or Traps", arXiv 2508.08221: group mean, std of the batch, token-level loss; no critic.
    "lite_ppo": {
        "advantage": "batch_std",
        "region": "clip",
        "clip_low": 0.2,
        "clip_high": 0.2,
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
    # On-policy distillation, arXiv 2306.13649 with the reverse KL of each sampled token as its reward: needs [teacher].
    "opd": {"advantage": "none", "region": "none", "kl_coef": 0.0, "aggregation": "token_mean"},
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
