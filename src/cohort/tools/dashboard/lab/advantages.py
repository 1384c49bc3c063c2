"""Stations 1, 2 and 5: groups under every advantage of the registry, and the exact learning signal of easy and hard prompts.

A policy that succeeds with probability p is pushed along the gradient of p by w(p), the expected difference between the advantages of a
right and a wrong completion over all outcomes of the other G - 1:

    w(p) = sum over j of C(G - 1, j) p^j (1 - p)^(G - 1 - j) (A_right(j + 1) - A_wrong(j))

with A(k) the advantage in a group with k successes. Nothing is sampled: every outcome goes through the training function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

from cohort.algorithms.named import NAMED, find_named
from cohort.algorithms.registry import SAMPLED, Choice
from cohort.recipe.algorithm import AlgorithmConfig

SUCCESS_FROM = 0.5
"""Rewards of at least this value count as success for advantages that read success."""
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
"""The compared presets and their labels."""
LARGEST_BATCHED = 16
"""Largest group size for advantages that use the batch, because their number of outcomes is squared."""
LARGEST = 64
CURVE = tuple(place / 50 for place in range(51))
"""Success rates at the points of a curve."""
CONFIG = AlgorithmConfig()
Rows = Sequence[Sequence[float]]
Credits = tuple[tuple[float, float], ...]
"""By number of successes: (advantage of a right completion, of a wrong one); 0 if there is none."""


@dataclass(frozen=True)
class Groups:
    """P groups of G completions with one token each, and every input that an advantage can read (registry.READABLE)."""

    rewards_PG: Rows
    values_PG: Rows | None = None
    """The critic's values; 0 by default."""
    parts_PG: Mapping[str, Rows] = field(default_factory=dict)
    """By default the reward is the only part."""
    weights: Mapping[str, float] = field(default_factory=dict)

    def read(self, name: str) -> Any:
        """The input of an advantage with this name."""
        import torch

        rewards_PG = torch.tensor(self.rewards_PG, dtype=torch.float64)
        parts = self.parts_PG or {"reward": self.rewards_PG}
        values_PG = self.values_PG or [[0.0] * len(row) for row in self.rewards_PG]
        readers: dict[str, Callable[[], Any]] = {
            "rewards_PG": lambda: rewards_PG,
            "scored_PG": lambda: torch.ones_like(rewards_PG, dtype=torch.bool),
            "success_PG": lambda: rewards_PG >= SUCCESS_FROM,
            "parts_PG": lambda: {part: torch.tensor(rows, dtype=torch.float64) for part, rows in parts.items()},
            "weights": lambda: {part: self.weights.get(part, 1.0) for part in parts},
            "token_rewards_N": lambda: list(rewards_PG.flatten().split(1)),
            "values_N": lambda: list(torch.tensor(values_PG, dtype=torch.float64).flatten().split(1)),
            "steps_N": lambda: [((0, reward),) for reward in rewards_PG.flatten().tolist()],
            "turns_N": lambda: [((0, reward),) for reward in rewards_PG.flatten().tolist()],
            "lengths_N": lambda: [1] * rewards_PG.numel(),
            "groups_N": lambda: [group for group, row in enumerate(self.rewards_PG) for _ in row],
        }
        return readers[name]()


def credit_groups(choice: Choice, config: AlgorithmConfig, groups: Groups) -> list[list[float]]:
    """The advantage of every completion, by group."""
    import torch

    found = choice.call(config.read_parameters(choice), **{name: groups.read(name) for name in choice.reads})
    if choice.traits.per_token:
        found = torch.cat(list(getattr(found, "advantages_N", found))).view(len(groups.rewards_PG), -1)
    rows: list[list[float]] = found.double().tolist()
    return rows


# -- one group, and its baselines --------------------------------------------------------------------------------------


def compare_group(rewards_G: Sequence[float], std_ddof: int = 0, std_epsilon: float = 1e-6) -> dict[str, Any]:
    """The statistics and GRPO advantages of one group.

    `signal` is the mean of |advantage|: 0 if all rewards are equal, 1 if half of them succeed. `largest` is the largest possible
    advantage, that of a single success: sqrt(G - 1) with the population std.
    """
    import torch

    from cohort.algorithms.advantages import compute_std

    config, advantage = AlgorithmConfig(std_ddof=std_ddof, std_epsilon=std_epsilon), find_named("advantage", "group_normalized")
    advantages_G = credit_groups(advantage, config, Groups([rewards_G]))[0]
    rewards, total = torch.tensor(rewards_G, dtype=torch.float64), sum(map(abs, advantages_G))
    return {
        "rewards": list(rewards_G),
        "mean": float(rewards.mean()),
        "std": float(compute_std(rewards, std_ddof)),
        "ddof": std_ddof,
        "right": sum(reward >= SUCCESS_FROM for reward in rewards_G),
        "advantages": advantages_G,
        "shares": [abs(value) / total if total else 0.0 for value in advantages_G],
        "signal": total / len(advantages_G),
        "largest": credit_groups(advantage, config, Groups([lay_out_successes(1, len(rewards_G))]))[0][0],
        "root": math.sqrt(len(rewards_G) - 1),
    }


def compare_baselines(
    rewards_G: Sequence[float], value: float, other_right: int, form_G: Sequence[float] = (), format_weight: float = 0.0
) -> dict[str, Any]:
    """The group's advantages under each baseline, in a batch with a second group that has `other_right` successes.

    `value` is the critic's estimate for each completion. PPO is shown before whitening (reward - value, by GAE) and as it trains, whitened
    over the batch. `form_G`, a second reward part, is added with its weight.
    """
    import torch

    from cohort.algorithms.advantages import gae

    size = len(rewards_G)
    form_G = list(form_G) if format_weight else [0.0] * size
    other_G = lay_out_successes(other_right, size)
    total_G = [reward + format_weight * form for reward, form in zip(rewards_G, form_G, strict=True)]
    parts = {"answer": [list(rewards_G), other_G]} | ({"format": [form_G, [0.0] * size]} if format_weight else {})
    groups = Groups([total_G, other_G], [[value] * size, [value] * size], parts, {"answer": 1.0, "format": format_weight})
    # MaxRL reads success, which the format does not change.
    outcome = Groups([list(rewards_G), other_G])
    rows = []
    for preset, label in BASELINES.items():
        config = AlgorithmConfig(name=preset)
        choice = find_named("advantage", config.advantage)
        advantages = credit_groups(choice, config, outcome if choice.reads_success else groups)[0]
        rows.append({"preset": preset, "label": label, "describes": choice.sentence, "advantages": advantages})
    rewards = torch.tensor(total_G, dtype=torch.float64)
    return {
        "rewards": total_G,
        "mean": float(rewards.mean()),
        "value": value,
        "critic": [float(gae(one, torch.full_like(one, value), 1.0, 1.0)[0]) for one in rewards.split(1)],
        "other": other_right,
        "right": sum(reward >= SUCCESS_FROM for reward in rewards_G),
        "success_from": SUCCESS_FROM,
        "rows": rows,
    }


# -- easy and hard prompts ---------------------------------------------------------------------------------------------


def weigh_difficulty(p: float, group_size: int, other: float = 0.5) -> dict[str, Any]:
    """The share of useful groups and w(p) of every advantage, at p and along the curve.

    `other` is the success rate of a second prompt in the batch, which affects only advantages that use the batch.
    """
    comparable = list_comparable()
    names = [name for name in comparable if group_size <= LARGEST_BATCHED or not uses_batch(name)]
    outcomes = [chance(k, group_size, p) for k in range(group_size + 1)]
    silent = find_silent_counts(group_size)
    return {
        "p": p,
        "group_size": group_size,
        "outcomes": outcomes,
        "all_wrong": outcomes[0],
        "all_right": outcomes[-1],
        "useful": 1.0 - math.fsum(outcomes[k] for k in silent),
        "weights": {name: weigh(name, p, group_size, other) for name in names},
        "batched": [name for name in names if uses_batch(name)],
        "left_out": sorted(set(comparable) - set(names)),
        "describes": {name: comparable[name].sentence for name in names},
        "curve": {
            "p": list(CURVE),
            "weights": {name: [weigh(name, rate, group_size, other) for rate in CURVE] for name in names},
        },
    }


def list_comparable() -> dict[str, Choice]:
    """The advantages that apply to sampled completions without demonstrations or a teacher."""
    return {
        name: choice
        for name, choice in NAMED["advantage"].items()
        if choice.traits.fits >= SAMPLED and not choice.traits.needs_teacher
    }


def chance(k: int, count: int, p: float) -> float:
    """The probability that k of `count` completions succeed."""
    return math.comb(count, k) * p**k * (1.0 - p) ** (count - k)


def weigh(name: str, p: float, group_size: int, other: float) -> float:
    """w(p), averaged over the outcomes of the batch's second group if the advantage uses the batch."""
    if not uses_batch(name):
        return weigh_outcomes(credit_counts(name, group_size), p)
    return math.fsum(
        chance(k, group_size, other) * weigh_outcomes(credit_counts(name, group_size, k), p) for k in range(group_size + 1)
    )


def weigh_outcomes(credits: Credits, p: float) -> float:
    others = len(credits) - 2
    return math.fsum(chance(j, others, p) * (credits[j + 1][0] - credits[j][1]) for j in range(others + 1))


@lru_cache(maxsize=4096)
def credit_counts(name: str, group_size: int, other_right: int | None = None) -> Credits:
    """The advantages of right and wrong completions by number of successes. other_right: the successes of a second group in the batch."""
    choice, rows = find_named("advantage", name), [lay_out_successes(k, group_size) for k in range(group_size + 1)]
    if other_right is None:
        advantages_KG = credit_groups(choice, CONFIG, Groups(rows))
    else:
        second = lay_out_successes(other_right, group_size)
        advantages_KG = [credit_groups(choice, CONFIG, Groups([row, second]))[0] for row in rows]
    # Right completions come first. Means, because an advantage may credit only the first of equal completions.
    sides = ((row[:k], row[k:]) for k, row in enumerate(advantages_KG))
    return tuple((sum(right) / max(1, len(right)), sum(wrong) / max(1, len(wrong))) for right, wrong in sides)


@cache
def uses_batch(name: str) -> bool:
    """Whether a second group of the batch changes the advantages of a group."""
    return credit_counts(name, 4, 1) != credit_counts(name, 4, 2)


@lru_cache(maxsize=LARGEST)
def find_silent_counts(group_size: int) -> Sequence[int]:
    """The numbers of successes that give a group no gradient, by the training function."""
    import torch

    from cohort.algorithms.advantages import zero_variance_groups

    rewards_PG = torch.tensor([lay_out_successes(k, group_size) for k in range(group_size + 1)], dtype=torch.float64)
    silent_P = zero_variance_groups(rewards_PG, torch.ones_like(rewards_PG, dtype=torch.bool))
    return [int(k) for k in silent_P.nonzero().flatten()]


def lay_out_successes(k: int, group_size: int) -> list[float]:
    return [1.0] * k + [0.0] * (group_size - k)
