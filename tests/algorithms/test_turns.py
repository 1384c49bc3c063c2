"""The advantage `turns` against exact enumeration, and why `process` is refused in environments."""

from __future__ import annotations

import itertools
import math

import torch

from cohort.algorithms.advantages import process, turns

FIRST, SECOND = torch.tensor([0.3]), torch.tensor([-0.7])
"""Logits: to go on after the first turn, and of the better action in the second."""
EPISODES = {(0,): (0.8,), (1, 0): (0.0, 0.4), (1, 1): (0.0, 1.0)}
"""Actions -> the reward of each turn. Going on can return more, but its first turn earns nothing."""


def logprobs(actions: tuple[int, ...], logits: torch.Tensor) -> list[torch.Tensor]:
    return [torch.nn.functional.logsigmoid(logits[turn] if action else -logits[turn]) for turn, action in enumerate(actions)]


def expected_gradient(credit, group_size: int) -> torch.Tensor:
    """The expectation over all groups of the policy gradient with this credit, summed over the group and divided by its size."""
    logits = torch.cat([FIRST, SECOND]).double().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for group in itertools.product(EPISODES, repeat=group_size):
        own = [logprobs(actions, logits) for actions in group]
        probability = math.exp(sum(float(value.detach()) for values in own for value in values))
        steps = [tuple(enumerate(EPISODES[actions])) for actions in group]  # one token per turn
        found = credit(steps, [len(actions) for actions in group], [0] * group_size)
        for values, advantages_T in zip(own, found, strict=True):
            total = total + probability / group_size * sum(
                float(advantage) * value for advantage, value in zip(advantages_T, values, strict=True)
            )
    total.backward()
    return logits.grad


def exact_gradient() -> torch.Tensor:
    logits = torch.cat([FIRST, SECOND]).double().requires_grad_()
    sum(sum(EPISODES[actions]) * torch.stack(logprobs(actions, logits)).sum().exp() for actions in EPISODES).backward()
    return logits.grad


def test_turns_is_unbiased_up_to_the_share_of_a_completion_in_its_own_mean():
    exact = exact_gradient()
    for size in (2, 3):
        torch.testing.assert_close(expected_gradient(turns, size), (size - 1) / size * exact, rtol=1e-12, atol=1e-12)


def test_process_is_wrong_where_the_policy_decides_how_many_steps_there_are():
    """Going on earns 0 and then 0.4 or 1, on average less than stopping at once: the exact gradient says stop, `process` another size of it,
    and with a better second turn even the other sign."""
    global SECOND
    before, SECOND = SECOND, torch.tensor([2.0])  # now going on returns 0.93 on average, stopping 0.8
    try:
        exact, credited = exact_gradient(), expected_gradient(process, 2)
        unbiased = expected_gradient(turns, 2)
    finally:
        SECOND = before
    assert exact[0] > 0.02
    assert unbiased[0] > 0.01
    assert credited[0] < -0.02, "it teaches to stop, although going on returns more"
