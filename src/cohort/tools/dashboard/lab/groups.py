"""Station 1 and 2: one group under GRPO, and the same group under every baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cohort.recipe.algorithm import AlgorithmConfig
from cohort.tools.dashboard.lab.crediting import SUCCESS_FROM, Groups, credit_groups, find_advantage

BASELINES = {
    "grpo": "GRPO",
    "dr_grpo": "Dr. GRPO",
    "rloo": "RLOO",
    "lite_ppo": "batch (Lite PPO)",
    "reinforce++_baseline": "batch, whitened (REINFORCE++ baseline)",
    "maxrl": "MaxRL",
    "gdpo": "GDPO",
    "ppo": "PPO",
}
"""The presets that are laid side by side, and what people call them."""


def compare_group(rewards_G: Sequence[float], std_ddof: int = 0, std_epsilon: float = 1e-6) -> dict[str, Any]:
    """Mean, std, count, advantages and gradient signal of one group under GRPO.

    The signal is the mean of |advantage|: 0 where all rewards are equal, 1 where half of them succeed. `largest` is what nobody
    can exceed: the advantage of a lone success, sqrt(G - 1) with the population's std.
    """
    import torch

    from cohort.algorithms.advantages import compute_std

    words = AlgorithmConfig(std_ddof=std_ddof, std_epsilon=std_epsilon)
    advantage = find_advantage("group_normalized")
    advantages_G = credit_groups(advantage, words, Groups([rewards_G]))[0]
    lone_G = [1.0] + [0.0] * (len(rewards_G) - 1)
    rewards = torch.tensor(rewards_G, dtype=torch.float64)
    total = sum(map(abs, advantages_G))
    return {
        "rewards": list(rewards_G),
        "mean": float(rewards.mean()),
        "std": float(compute_std(rewards, std_ddof)),
        "ddof": std_ddof,
        "right": sum(reward >= SUCCESS_FROM for reward in rewards_G),
        "advantages": advantages_G,
        "shares": [abs(value) / total if total else 0.0 for value in advantages_G],
        "signal": total / len(advantages_G),
        "largest": credit_groups(advantage, words, Groups([lone_G]))[0][0],
        "root": math.sqrt(len(rewards_G) - 1),
    }


def compare_baselines(
    rewards_G: Sequence[float],
    value: float,
    other_right: int,
    format_G: Sequence[float] = (),
    format_weight: float = 0.0,
) -> dict[str, Any]:
    """The group's advantages under each baseline, in a batch of two: this group, and one in which `other_right` completions succeed.

    `value` is what a critic expects of each completion; PPO's advantage is shown as GAE gives it, reward - value, and as it
    trains, whitened over the batch. A second reward part, `format`, is added to the reward with its weight.
    """
    import torch

    from cohort.algorithms.advantages import gae

    size = len(rewards_G)
    form_G = list(format_G) if format_weight else [0.0] * size
    other_G = [1.0] * other_right + [0.0] * (size - other_right)
    total_G = [reward + format_weight * form for reward, form in zip(rewards_G, form_G, strict=True)]
    parts = {"answer": [list(rewards_G), other_G]}
    if format_weight:
        parts["format"] = [form_G, [0.0] * size]
    groups = Groups([total_G, other_G], [[value] * size, [value] * size], parts, {"answer": 1.0, "format": format_weight})
    # MaxRL reads success, which the format does not change.
    outcome = Groups([list(rewards_G), other_G])
    rows = []
    for preset, label in BASELINES.items():
        words = AlgorithmConfig(name=preset)
        choice = find_advantage(words.advantage)
        credited = credit_groups(choice, words, outcome if choice.reads_success else groups)
        rows.append(
            {"preset": preset, "label": label, "advantage": choice.name, "says": choice.sentence, "advantages": credited[0]}
        )
    rewards = torch.tensor(total_G, dtype=torch.float64)
    raw = [float(gae(one, torch.full_like(one, value), 1.0, 1.0)[0]) for one in rewards.split(1)]
    return {
        "rewards": total_G,
        "mean": float(rewards.mean()),
        "value": value,
        "critic": raw,
        "other": other_right,
        "right": sum(reward >= SUCCESS_FROM for reward in rewards_G),
        "success_from": SUCCESS_FROM,
        "rows": rows,
    }
