"""What replaces the critic: the group's own statistics.

Every function takes rewards_PG (P groups of G rewards) and scored_PG (False where a completion has no reward) and gives
advantages_PG in float64. An unscored completion is out of its group's mean and std and gets 0. A group whose scored
rewards are all equal gets exactly 0 for every member: equality is tested on the rewards themselves, since the float
residue of a variance divided by a tiny epsilon has produced advantages in the thousands elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def group_normalized(rewards_PG: Tensor, scored_PG: Tensor, *, ddof: int = 0, epsilon: float = 1e-6) -> Tensor:
    """GRPO: (r - mean) / (std + epsilon). [1,0,1,0,1,1,0,1] has mean 0.625, std 0.484: +0.77 and -1.29."""
    centered_PG, count_P1 = _center(rewards_PG, scored_PG)
    # Two passes (centre, then square) keep the variance of nearly equal rewards exact.
    variance_P1 = centered_PG.square().sum(1, keepdim=True) / (count_P1 - ddof).clamp(min=1)
    return torch.where(_has_signal(rewards_PG, scored_PG), centered_PG / (variance_P1.sqrt() + epsilon), 0.0)


def group_centered(rewards_PG: Tensor, scored_PG: Tensor, *, ddof: int = 0, epsilon: float = 0.0) -> Tensor:
    """Dr. GRPO: r - mean. Without the division, easy and hard prompts weigh no more than informative ones."""
    centered_PG, _ = _center(rewards_PG, scored_PG)
    return torch.where(_has_signal(rewards_PG, scored_PG), centered_PG, 0.0)


ADVANTAGES: dict[str, Callable[..., Tensor]] = {
    "group_normalized": group_normalized,
    "group_centered": group_centered,
}


def zero_variance_groups(rewards_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """[P] True where at least two completions were scored and all of them the same."""
    enough_P = scored_PG.sum(1) >= 2
    return enough_P & ~_differs(rewards_PG, scored_PG)


def unusable_groups(scored_PG: Tensor) -> Tensor:
    """[P] True where fewer than two completions were scored: nothing to compare with."""
    return scored_PG.sum(1) < 2


def _center(rewards_PG: Tensor, scored_PG: Tensor) -> tuple[Tensor, Tensor]:
    rewards_PG = torch.where(scored_PG, rewards_PG.double(), 0.0)
    count_P1 = scored_PG.sum(1, keepdim=True).clamp(min=1).double()
    mean_P1 = rewards_PG.sum(1, keepdim=True) / count_P1
    return torch.where(scored_PG, rewards_PG - mean_P1, 0.0), count_P1


def _differs(rewards_PG: Tensor, scored_PG: Tensor) -> Tensor:
    low_P = torch.where(scored_PG, rewards_PG.double(), torch.inf).amin(1)
    high_P = torch.where(scored_PG, rewards_PG.double(), -torch.inf).amax(1)
    return low_P < high_P


def _has_signal(rewards_PG: Tensor, scored_PG: Tensor) -> Tensor:
    return scored_PG & _differs(rewards_PG, scored_PG)[:, None]
