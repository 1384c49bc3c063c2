"""Advantages: the credit of a completion or a token.

An advantage names its inputs (registry.READABLE): most take rewards_PG (P groups of G rewards) and scored_PG (False where a
completion has no reward) and return advantages_PG in float64. The others credit single tokens: one vector per completion
(suffix N), over its trained tokens or all of its tokens. An unscored completion is excluded from its group's mean and std and gets
0. A group whose scored rewards are all equal gets exactly 0 for every member: equality is tested on the rewards themselves,
because a rounding residue divided by a tiny epsilon has produced advantages in the thousands elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cohort.algorithms.registry import SAMPLED, advantage
from cohort.base.importing import LazyModule

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = LazyModule("torch")


@advantage()
def group_normalized(rewards_PG: Tensor, scored_PG: Tensor, *, std_ddof: int = 0, std_epsilon: float = 1e-6) -> Tensor:
    """GRPO: (r - mean) / (std + epsilon). [1,0,1,0,1,1,0,1] has mean 0.625, std 0.484: +0.77 and -1.29."""
    centered_PG, count_P1 = _center(rewards_PG, scored_PG)
    # Two passes (centre, then square) keep the variance of nearly equal rewards exact.
    variance_P1 = centered_PG.square().sum(1, keepdim=True) / (count_P1 - std_ddof).clamp(min=1)
    return torch.where(_has_signal(rewards_PG, scored_PG), centered_PG / (variance_P1.sqrt() + std_epsilon), 0.0)


@advantage()
def group_centered(rewards_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """Dr. GRPO: r - mean. Without the division, easy and hard prompts do not outweigh informative ones."""
    centered_PG, _ = _center(rewards_PG, scored_PG)
    return torch.where(_has_signal(rewards_PG, scored_PG), centered_PG, 0.0)


@advantage()
def batch_std(rewards_PG: Tensor, scored_PG: Tensor, *, std_ddof: int = 0, std_epsilon: float = 1e-6) -> Tensor:
    """Lite-PPO: (r - group mean) / (std of all raw rewards of the groups in the batch, without dropped ones, + epsilon). All groups share one scale."""
    centered_PG, _ = _center(rewards_PG, scored_PG)
    advantages_PG = centered_PG / (compute_std(rewards_PG[scored_PG], std_ddof) + std_epsilon)
    return torch.where(_has_signal(rewards_PG, scored_PG), advantages_PG, 0.0)


@advantage()
def batch_whitened(rewards_PG: Tensor, scored_PG: Tensor, *, std_ddof: int = 0, std_epsilon: float = 1e-6) -> Tensor:
    """REINFORCE++ with baseline: r - group mean, divided by the std of these centred values over the batch.

    Whitening would also subtract their mean, which is already 0: every group sums to 0.
    """
    centered_PG, _ = _center(rewards_PG, scored_PG)
    compared_PG = scored_PG & ~find_unusable_groups(scored_PG)[:, None]
    advantages_PG = centered_PG / (compute_std(centered_PG[compared_PG], std_ddof) + std_epsilon)
    return torch.where(_has_signal(rewards_PG, scored_PG), advantages_PG, 0.0)


@advantage()
def leave_one_out(rewards_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """RLOO: r minus the mean of the other rewards of the group: an unbiased baseline, G / (G - 1) times the centred reward."""
    centered_PG, count_P1 = _center(rewards_PG, scored_PG)
    advantages_PG = centered_PG * count_P1 / (count_P1 - 1).clamp(min=1)
    return torch.where(_has_signal(rewards_PG, scored_PG), advantages_PG, 0.0)


@advantage()
def parts_normalized(
    parts_PG: Mapping[str, Tensor],
    weights: Mapping[str, float],
    scored_PG: Tensor,
    *,
    std_ddof: int = 0,
    std_epsilon: float = 1e-6,
) -> Tensor:
    """GDPO: each reward part normalised inside its group, then their weighted sum divided by its std over the batch.

    Completions with different parts keep different advantages even if their rewards have the same sum. A part that abstained is
    left out of the sum of that completion; a part that is equal throughout a group adds 0. Whitening would also subtract the mean of
    the sums, which is already 0: every part sums to 0 over a group.
    """
    sums_PG = torch.zeros_like(scored_PG, dtype=torch.float64)
    for name, values_PG in parts_PG.items():
        present_PG = scored_PG & ~values_PG.isnan()
        normalized_PG = group_normalized(values_PG, present_PG, std_ddof=std_ddof, std_epsilon=std_epsilon)
        sums_PG = sums_PG + weights[name] * normalized_PG
    compared_PG = scored_PG & ~find_unusable_groups(scored_PG)[:, None]
    return torch.where(sums_PG != 0, sums_PG / (compute_std(sums_PG[compared_PG], std_ddof) + std_epsilon), 0.0)


@advantage(fits=SAMPLED | {"pairs"})
def best_and_worst(rewards_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """DPO on rollouts: +1 for the best completion of a group, -1 for the worst, 0 for the rest; the first wins a tie."""
    rewards_PG = rewards_PG.double()
    best_P1 = torch.where(scored_PG, rewards_PG, -torch.inf).argmax(1, keepdim=True)
    worst_P1 = torch.where(scored_PG, rewards_PG, torch.inf).argmin(1, keepdim=True)
    signs_PG = torch.zeros_like(rewards_PG).scatter(1, best_P1, 1.0).scatter(1, worst_P1, -1.0)
    return torch.where(_has_signal(rewards_PG, scored_PG), signs_PG, 0.0)


@advantage()
def relative_to_mean(success_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """MaxRL: (s - mean) / mean of the group's success, 0 in groups without a success: rare successes have a larger weight.

    The expected gradient is that of pass@1 + pass@2 / 2 + ... + pass@(G-1) / (G-1): the first terms of log p.
    """
    centered_PG, count_P1 = _center(success_PG, scored_PG)
    mean_P1 = (success_PG & scored_PG).sum(1, keepdim=True) / count_P1
    return torch.where(_has_signal(success_PG, scored_PG), centered_PG / mean_P1, 0.0)


@advantage(compares_group=False, never_negative=True)
def binary(success_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """RFT: 1 where the completion is right, else 0 (DeepSeekMath, table 10)."""
    return (success_PG & scored_PG).double()


@advantage(compares_group=False)
def binary_signed(success_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """+1 where the completion is right, -1 where it is wrong: RFT that also lowers the probability of wrong completions."""
    return torch.where(scored_PG, torch.where(success_PG, 1.0, -1.0), 0.0).double()


@advantage(compares_group=False, never_negative=True, fits=frozenset({"demonstrations"}))
def uniform(scored_PG: Tensor) -> Tensor:
    """SFT: 1 on every demonstration."""
    return scored_PG.double()


@advantage("none", compares_group=False, needs_teacher=True)
def no_credit(scored_PG: Tensor) -> Tensor:
    """On-policy distillation only: 0 for every completion. All credit comes from the teacher; rewards are only measured."""
    return torch.zeros_like(scored_PG, dtype=torch.float64)


# -- credit for single tokens ------------------------------------------------------------------------------------------

Steps = Sequence[tuple[int, float]]
"""(index of the token that ends a step, reward of the step), in order."""


@dataclass(frozen=True)
class TokenCredit:
    """Advantages of tokens, and the returns that the critic is trained to predict."""

    advantages_N: list[Tensor]
    returns_N: list[Tensor]


@advantage(per_token=True)
def process(
    steps_N: Sequence[Steps], lengths_N: Sequence[int], groups_N: Sequence[int], *, std_ddof: int = 0, std_epsilon: float = 1e-6
) -> list[Tensor]:
    """GRPO with process supervision: each token gets the normalised rewards of its own step and all later ones."""
    places: dict[int, list[int]] = {}
    for place, group in enumerate(groups_N):
        places.setdefault(group, []).append(place)
    credited: dict[int, Tensor] = {}
    for members in places.values():
        steps_G, lengths_G = [steps_N[place] for place in members], [lengths_N[place] for place in members]
        credited |= zip(members, credit_steps(steps_G, lengths_G, std_ddof, std_epsilon), strict=True)
    return [credited[place] for place in range(len(groups_N))]


def credit_steps(
    steps_G: Sequence[Steps | None], lengths_G: Sequence[int], std_ddof: int = 0, std_epsilon: float = 1e-6
) -> list[Tensor]:
    """Process supervision of one group: mean and std are over all step rewards of all its completions; None is unscored.

    With one step per completion, at its end, this is `group_normalized`.
    """
    rewards_S = torch.tensor([reward for steps in steps_G if steps for _, reward in steps], dtype=torch.float64)
    advantages_G = [torch.zeros(length, dtype=torch.float64) for length in lengths_G]
    if rewards_S.numel() == 0 or bool((rewards_S == rewards_S[0]).all()):
        return advantages_G
    mean, scale = rewards_S.mean(), compute_std(rewards_S, std_ddof) + std_epsilon
    for advantages_T, steps in zip(advantages_G, steps_G, strict=True):
        for end, reward in steps or ():
            advantages_T[: end + 1] += (reward - mean) / scale
    return advantages_G


@advantage(per_token=True)
def turns(turns_N: Sequence[Steps], lengths_N: Sequence[int], groups_N: Sequence[int]) -> list[Tensor]:
    """Each turn of an episode gets the rewards of its own and all later turns, minus their mean over the group.

    An episode that has ended counts with 0 in the means of later turns, so a mean depends on a member's own actions only through its own
    share: the expected gradient is (G - 1) / G times the exact one, for every turn.
    """
    returns_N = [[sum(reward for _, reward in one[place:]) for place in range(len(one))] for one in turns_N]
    totals: dict[tuple[int, int], float] = {}
    for group, returns in zip(groups_N, returns_N, strict=True):
        for place, value in enumerate(returns):
            totals[group, place] = totals.get((group, place), 0.0) + value
    sizes = Counter(groups_N)
    found = []
    for group, one, returns, length in zip(groups_N, turns_N, returns_N, lengths_N, strict=True):
        advantages_T, begin = torch.zeros(length, dtype=torch.float64), 0
        for place, ((end, _), value) in enumerate(zip(one, returns, strict=True)):
            advantages_T[begin : end + 1] = value - totals[group, place] / sizes[group]
            begin = end + 1
        found.append(advantages_T)
    return found


@advantage(compares_group=False, per_token=True)
def global_normalized(
    token_rewards_N: Sequence[Tensor], *, gamma: float = 1.0, std_ddof: int = 0, std_epsilon: float = 1e-6
) -> list[Tensor]:
    """REINFORCE++: the discounted return of each token, whitened over all trained tokens of the batch."""
    return whiten([returns_to_go(rewards_T, gamma) for rewards_T in token_rewards_N], std_ddof, std_epsilon)


@advantage("gae", compares_group=False, per_token=True)
def gae_whitened(
    token_rewards_N: Sequence[Tensor],
    values_N: Sequence[Tensor],
    *,
    gamma: float = 1.0,
    gae_lambda: float = 1.0,
    std_ddof: int = 0,
    std_epsilon: float = 1e-6,
) -> TokenCredit:
    """PPO: generalised advantage estimation on a learned critic, whitened over all trained tokens of the batch."""
    pairs = list(zip(token_rewards_N, values_N, strict=True))
    rows = [gae(rewards_T, values_T, gamma, gae_lambda) for rewards_T, values_T in pairs]
    returns_N = [row + values_T for row, (_, values_T) in zip(rows, pairs, strict=True)]
    return TokenCredit(whiten(rows, std_ddof, std_epsilon), returns_N)


def returns_to_go(rewards_T: Tensor, gamma: float = 1.0) -> Tensor:
    """The return from each token on: R_t = r_t + gamma R_{t+1}."""
    return gae(rewards_T, torch.zeros_like(rewards_T), gamma, 1.0)


def gae(rewards_T: Tensor, values_T: Tensor, gamma: float, lam: float) -> Tensor:
    """PPO: A_t = d_t + gamma lambda A_{t+1} with d_t = r_t + gamma V_{t+1} - V_t; V is 0 after the last token."""
    rewards, values = rewards_T.tolist(), [*values_T.tolist(), 0.0]
    advantages, following = [0.0] * len(rewards), 0.0
    for place in reversed(range(len(rewards))):
        surprise = rewards[place] + gamma * values[place + 1] - values[place]
        advantages[place] = following = surprise + gamma * lam * following
    return torch.tensor(advantages, dtype=torch.float64)


def whiten(rows: Sequence[Tensor], std_ddof: int = 0, std_epsilon: float = 1e-6) -> list[Tensor]:
    """Scale all values of all rows together to mean 0 and std 1; if all values are equal, they become exactly 0."""
    flat_S = torch.cat([row.double() for row in rows]) if rows else torch.zeros(0)
    if flat_S.numel() == 0 or bool((flat_S == flat_S[0]).all()):
        return [torch.zeros_like(row, dtype=torch.float64) for row in rows]
    mean, scale = flat_S.mean(), compute_std(flat_S, std_ddof) + std_epsilon
    return [(row.double() - mean) / scale for row in rows]


# -- groups ------------------------------------------------------------------------------------------------------------


def zero_variance_groups(rewards_PG: Tensor, scored_PG: Tensor) -> Tensor:
    """[P] True where at least two completions were scored and all have the same reward."""
    enough_P = scored_PG.sum(1) >= 2
    return enough_P & ~_differs(rewards_PG, scored_PG)


def find_unusable_groups(scored_PG: Tensor) -> Tensor:
    """[P] True where fewer than two completions were scored, so there is nothing to compare."""
    return scored_PG.sum(1) < 2


def compute_std(values_S: Tensor, ddof: int) -> Tensor:
    """The standard deviation, in two passes (centre, then square) for precision on nearly equal values."""
    values_S = values_S.double()
    if values_S.numel() <= ddof or bool((values_S == values_S[0]).all()):
        return torch.zeros((), dtype=torch.float64)
    return ((values_S - values_S.mean()).square().sum() / (values_S.numel() - ddof)).sqrt()


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
