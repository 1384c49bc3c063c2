"""Station 5: easy, hard, hopeless. What a prompt of success rate p teaches in groups of G, exactly, under every advantage.

A policy that succeeds with probability p is pushed along the gradient of p by w(p): the expected difference between what a right and
a wrong completion is credited with, over all outcomes of the other G - 1,

    w(p) = sum over j of C(G - 1, j) p^j (1 - p)^(G - 1 - j) (A_right(j + 1) - A_wrong(j))

with A(k) the advantage in a group of k successes. Nothing is sampled: every outcome is put through the function that trains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

from cohort.recipe.algorithm import AlgorithmConfig
from cohort.tools.dashboard.lab.crediting import Groups, credit_groups, find_advantage, list_comparable

LARGEST_BATCHED = 16
"""Group size up to which the advantages that look at the batch are enumerated too: their outcomes are the square of the others'."""
LARGEST = 64
CURVE = tuple(place / 50 for place in range(51))
"""The success rates a curve is drawn at."""
WORDS = AlgorithmConfig()
Credits = tuple[tuple[float, float], ...]
"""By number of successes: (advantage of a right completion, of a wrong one); 0 where there is none."""


def weigh_difficulty(p: float, group_size: int, other: float = 0.5) -> dict[str, Any]:
    """Useful share, wasted groups and the weight w(p) of every advantage, at p and along the curve.

    `other` is the success rate of a second prompt in the batch, which only advantages that look at the whole batch notice.
    """
    names = list_weighable(group_size)
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
        "batched": [name for name in names if sees_batch(name)],
        "left_out": sorted(set(list_comparable()) - set(names)),
        "says": {name: find_advantage(name).sentence for name in names},
        "curve": {
            "p": list(CURVE),
            "useful": [1.0 - math.fsum(chance(k, group_size, rate) for k in silent) for rate in CURVE],
            "weights": {name: [weigh(name, rate, group_size, other) for rate in CURVE] for name in names},
        },
    }


def chance(k: int, count: int, p: float) -> float:
    """That k of `count` completions succeed."""
    return math.comb(count, k) * p**k * (1.0 - p) ** (count - k)


def weigh(name: str, p: float, group_size: int, other: float) -> float:
    """w(p): how hard a prompt of success rate p is pushed, averaged over what its batch may hold."""
    others = group_size - 1
    if not sees_batch(name):
        return weigh_outcomes(credit_counts(name, group_size), p, others)
    return math.fsum(
        chance(beside, group_size, other) * weigh_outcomes(credit_beside(name, group_size, beside), p, others)
        for beside in range(group_size + 1)
    )


def weigh_outcomes(credits: Credits, p: float, others: int) -> float:
    return math.fsum(chance(j, others, p) * (credits[j + 1][0] - credits[j][1]) for j in range(others + 1))


@lru_cache(maxsize=1024)
def credit_counts(name: str, group_size: int) -> Credits:
    """What right and wrong completions are credited with, by number of successes, where groups do not see each other."""
    rows = [lay_out_successes(k, group_size) for k in range(group_size + 1)]
    return average_sides(credit_groups(find_advantage(name), WORDS, Groups(rows)))


@lru_cache(maxsize=4096)
def credit_beside(name: str, group_size: int, beside: int) -> Credits:
    """The same in a batch with a second group of which `beside` succeed."""
    choice, second = find_advantage(name), lay_out_successes(beside, group_size)
    rows = [[lay_out_successes(k, group_size), second] for k in range(group_size + 1)]
    return average_sides([credit_groups(choice, WORDS, Groups(pair))[0] for pair in rows])


def average_sides(advantages_KG: Sequence[Sequence[float]]) -> Credits:
    """The right completions stand first and the wrong ones last. Means, since of equals one alone may be credited (the first of a tie)."""
    sides = ((row[:k], row[k:]) for k, row in enumerate(advantages_KG))
    return tuple((sum(right) / max(1, len(right)), sum(wrong) / max(1, len(wrong))) for right, wrong in sides)


@cache
def sees_batch(name: str) -> bool:
    """Whether a second group of the batch changes what a group is credited with."""
    return credit_beside(name, 4, 1) != credit_beside(name, 4, 2)


def list_weighable(group_size: int) -> list[str]:
    """The advantages that judge completions; in large groups without those that look at the batch."""
    return [name for name in list_comparable() if group_size <= LARGEST_BATCHED or not sees_batch(name)]


@lru_cache(maxsize=LARGEST)
def find_silent_counts(group_size: int) -> Sequence[int]:
    """The numbers of successes with which a group teaches nothing, as training finds them."""
    import torch

    from cohort.algorithms.advantages import zero_variance_groups

    rewards_PG = torch.tensor([lay_out_successes(k, group_size) for k in range(group_size + 1)], dtype=torch.float64)
    silent_P = zero_variance_groups(rewards_PG, torch.ones_like(rewards_PG, dtype=torch.bool))
    return [int(k) for k in silent_P.nonzero().flatten()]


def lay_out_successes(k: int, group_size: int) -> list[float]:
    return [1.0] * k + [0.0] * (group_size - k)
