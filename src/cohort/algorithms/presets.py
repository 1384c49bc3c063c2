"""Named algorithms as rows of choices.

A preset is data: it expands into the recipe, and any choice can be overridden. What it does not name keeps the default
of the recipe (docs/recipe.md). The columns are DeepSeekMath's frame: where the data comes from, what is credited
(advantage), how far an update may go (region), how tokens are added up (aggregation), and what holds the policy back (KL).
"""

from __future__ import annotations

from typing import Any


def make_preset(advantage: str, region: str, aggregation: str, *, kl_coef: float = 0.0, **others: Any) -> dict[str, Any]:
    """The choices of a named algorithm. Without another word there is no KL, and a clip is PPO's, 0.2 to both sides."""
    clip = {"clip_low": 0.2, "clip_high": 0.2} if region == "clip" else {}
    return {"advantage": advantage, "region": region, **clip, "kl_coef": kl_coef, "aggregation": aggregation, **others}


PRESETS: dict[str, dict[str, Any]] = {
    # DeepSeekMath, arXiv 2402.03300, eq. 3 and section 4.2.
    "grpo": make_preset("group_normalized", "clip", "sequence_mean", kl_coef=0.04),
    # DeepSeekMath section 4.1.3: the same with a reward per step; a token is credited with its own step and all later ones.
    "grpo_process": make_preset("process", "clip", "sequence_mean", kl_coef=0.04),
    # "Understanding R1-Zero-like training", arXiv 2503.20783: no length bias, no difficulty bias.
    "dr_grpo": make_preset("group_centered", "clip", "constant"),
    # DAPO, arXiv 2503.14476: clip-higher, token-level loss, dynamic sampling, soft overlong penalty (4096 of 20480 tokens).
    "dapo": make_preset("group_normalized", "clip", "token_mean", clip_high=0.28, refill_rounds=3, overlong_share=0.2),
    # REINFORCE++, arXiv 2501.03262: no group baseline at all; KL as a cost per token.
    "reinforce++": make_preset(
        "global_normalized", "clip", "token_mean", kl_coef=0.01, kl_estimator="k1", kl_in="token_reward"
    ),
    # The same paper's variant for reasoning: group mean as baseline, then whitened over the batch.
    "reinforce++_baseline": make_preset("batch_whitened", "clip", "token_mean", kl_coef=0.01, kl_estimator="k2"),
    # RLOO, arXiv 2402.14740: REINFORCE with the mean of the others as baseline; the completion is one action.
    "rloo": make_preset("leave_one_out", "none", "sequence_sum", kl_coef=0.01, kl_estimator="k1", kl_in="completion_reward"),
    # GSPO, arXiv 2507.18071: one ratio per completion, the geometric mean of its tokens'.
    "gspo": make_preset("group_normalized", "sequence", "sequence_mean", clip_low=3e-4, clip_high=4e-4),
    # CISPO, MiniMax-M1, arXiv 2506.13585: the weight is capped and no token is dropped.
    "cispo": make_preset("group_normalized", "cispo", "token_mean", ratio_cap=5.0),
    # SAPO, arXiv 2511.20347: no clip; the push fades as the ratio leaves 1, a little sooner where it pushes down.
    "sapo": make_preset("group_normalized", "soft", "sequence_mean", soft_up=1.0, soft_down=1.05),
    # DPPO, arXiv 2602.04879: the probability of a token is held, not its ratio; measured from the engine that sampled.
    "dppo": make_preset("group_centered", "divergence", "constant", divergence_limit=0.15),
    # MaxRL, arXiv 2602.02710: success against the group's mean success, so that hard prompts weigh most.
    "maxrl": make_preset("relative_to_mean", "clip", "token_mean"),
    # GDPO, arXiv 2601.05242: every reward part is normalised by itself before they are added.
    "gdpo": make_preset("parts_normalized", "clip", "sequence_mean"),
    # Lite PPO, "Tricks or Traps", arXiv 2508.08221: group mean, std of the batch, token-level loss; no critic.
    "lite_ppo": make_preset("batch_std", "clip", "token_mean"),
    # PPO, arXiv 1707.06347, as used for language models: a critic per token, KL as a cost per token.
    "ppo": make_preset(
        "gae", "clip", "token_mean", gamma=1.0, gae_lambda=0.95, kl_coef=0.01, kl_estimator="k1", kl_in="token_reward"
    ),
    # Rejection sampling fine-tuning on completions of the policy as it is now (DeepSeekMath section 5).
    "online_rft": make_preset("binary", "none", "token_mean"),
    # The same on completions of the policy the run started from.
    "rft": make_preset("binary", "none", "token_mean", data="start"),
    # On-policy distillation, arXiv 2306.13649 with the reverse KL of each sampled token as its reward: needs [teacher].
    "opd": make_preset("none", "none", "token_mean"),
    "sft": make_preset("uniform", "none", "token_mean", data="demonstrations"),
    # DPO, arXiv 2305.18290: kl_coef is its beta; data = "start" or "policy" builds pairs from rollouts.
    "dpo": make_preset("best_and_worst", "dpo", "prompt_mean", data="pairs", kl_coef=0.1),
}
