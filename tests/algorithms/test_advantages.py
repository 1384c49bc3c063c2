"""Advantages are the group's own statistics: worked numbers, awkward floats, missing scores, invariances, slow twins."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from cohort.algorithms.advantages import (
    batch_std,
    batch_whitened,
    best_and_worst,
    binary,
    binary_signed,
    credit_steps,
    find_unusable_groups,
    gae,
    group_centered,
    group_normalized,
    leave_one_out,
    parts_normalized,
    relative_to_mean,
    returns_to_go,
    uniform,
    whiten,
    zero_variance_groups,
)
from cohort.algorithms.named import NAMED

EVERY = sorted(name for name, choice in NAMED["advantage"].items() if choice.reads == ("rewards_PG", "scored_PG"))


def credit(name: str, rewards_PG: torch.Tensor, scored_PG: torch.Tensor, **words: float) -> torch.Tensor:
    """What the advantage of that name says, told the words that it names."""
    choice = NAMED["advantage"][name]
    told = {word: value for word, value in words.items() if word in choice.parameters}
    return choice.call(told, rewards_PG=rewards_PG, scored_PG=scored_PG)


def rows(*groups: list[float | None]) -> tuple[torch.Tensor, torch.Tensor]:
    rewards_PG = torch.tensor(
        [[0.0 if reward is None else reward for reward in group] for group in groups], dtype=torch.float64
    )
    scored_PG = torch.tensor([[reward is not None for reward in group] for group in groups])
    return rewards_PG, scored_PG


def double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def random_groups(seed: int, groups: int, size: int, unscored: float = 0.2) -> list[list[float | None]]:
    """Few distinct rewards, so that ties, equal groups and groups of one score all happen."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 4, (groups, size), generator=generator).double() / 3 - 0.2
    missing = torch.rand(groups, size, generator=generator) < unscored
    return [
        [None if gone else value for value, gone in zip(*pair, strict=True)]
        for pair in zip(values.tolist(), missing.tolist(), strict=True)
    ]


# -- every advantage from rewards ----------------------------------------------------------------------------------------


def test_the_worked_example():
    """Mean .625, std sqrt(.625 * .375) = .484: a right answer gets +0.7746, a wrong one -1.2910."""
    rewards = [1, 0, 1, 0, 1, 1, 0, 1]
    advantages_G = group_normalized(*rows(rewards))[0]
    std = (0.625 * 0.375) ** 0.5
    assert std == pytest.approx(0.484, abs=2e-4)
    expected = [(reward - 0.625) / (std + 1e-6) for reward in rewards]
    assert advantages_G.tolist() == pytest.approx(expected, abs=1e-14)
    assert advantages_G[0].item() == pytest.approx(0.77, abs=5e-3)
    assert advantages_G[1].item() == pytest.approx(-1.29, abs=5e-3)
    assert group_centered(*rows(rewards))[0].tolist() == [0.375 if reward else -0.625 for reward in rewards]
    # The mean of the other seven is 4/7 for a right answer and 5/7 for a wrong one.
    assert leave_one_out(*rows(rewards))[0].tolist() == pytest.approx([3 / 7 if r else -5 / 7 for r in rewards], abs=1e-15)
    # One group is its own batch, so both batch-wise divisors are the group's std.
    assert batch_std(*rows(rewards))[0].tolist() == pytest.approx(expected, abs=1e-14)
    assert batch_whitened(*rows(rewards))[0].tolist() == pytest.approx(expected, abs=1e-14)
    assert best_and_worst(*rows(rewards))[0].tolist() == [1, -1, 0, 0, 0, 0, 0, 0]


def test_two_groups_by_hand():
    """[1, 0, 0, 1] and [3, 3, 3, 7]: what each choice of divisor does to an easy and a wide group.

    All eight raw rewards: mean 18/8, squares 1 + 1 + 27 + 49 = 78, variance 78/8 - 2.25^2 = 4.6875. Centred: +-1/2 four
    times, and -1, -1, -1, 3: mean 0, squares 1 + 12 = 13, variance 13/8.
    """
    batch = rows([1, 0, 0, 1], [3, 3, 3, 7])
    centred = [[0.5, -0.5, -0.5, 0.5], [-1, -1, -1, 3]]
    scales = {"batch_std": 4.6875**0.5, "batch_whitened": (13 / 8) ** 0.5, "group_centered": 1.0}
    for name, scale in scales.items():
        expected = [[value / scale for value in group] for group in centred]
        assert credit(name, *batch, std_epsilon=0.0).tolist() == [pytest.approx(group, abs=1e-14) for group in expected]
    normalized = group_normalized(*batch, std_epsilon=0.0).tolist()
    assert normalized == [pytest.approx([1, -1, -1, 1]), pytest.approx([-(3**-0.5)] * 3 + [3**0.5])]
    assert leave_one_out(*batch).tolist() == [pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3]), pytest.approx([-4 / 3] * 3 + [4])]
    # The sample std divides by 7 instead of 8.
    assert batch_std(*batch, std_ddof=1, std_epsilon=0.5)[0, 0].item() == pytest.approx(0.5 / ((4.6875 * 8 / 7) ** 0.5 + 0.5))
    assert batch_whitened(*batch, std_ddof=1, std_epsilon=0.5)[1, 3].item() == pytest.approx(3 / ((13 / 7) ** 0.5 + 0.5))


def test_one_failure_among_seven_nearly_equal_rewards():
    """[0] + [0.95] * 7: std is 0.95 sqrt(7)/8, so -sqrt(7) and 1/sqrt(7), up to epsilon."""
    advantages_G = group_normalized(*rows([0.0] + [0.95] * 7), std_epsilon=0.0)[0]
    assert advantages_G.tolist() == pytest.approx([-(7**0.5)] + [7**-0.5] * 7, abs=1e-13)
    assert leave_one_out(*rows([0.0] + [0.95] * 7))[0].tolist() == pytest.approx([-0.95] + [0.95 / 7] * 7, abs=1e-14)


@pytest.mark.parametrize("value", [0.35, 0.1 + 0.2, 1 / 3, -1e-3, 1e8 + 0.1, 0.0, 5e-324])
@pytest.mark.parametrize("size", [2, 3, 7, 8])
@pytest.mark.parametrize("name", EVERY)
def test_equal_rewards_give_exactly_zero(value, size, name):
    """Not "small": 0.0, whatever the rounding of the mean does, also with an epsilon of zero; alone or beside a group that differs."""
    rewards_PG, scored_PG = rows([value] * size)
    assert zero_variance_groups(rewards_PG, scored_PG).tolist() == [True]
    beside = rows([value] * size, [float(place) for place in range(size)])
    for epsilon in (1e-6, 1e-4, 0.0):
        assert credit(name, rewards_PG, scored_PG, std_epsilon=epsilon).tolist() == [[0.0] * size]
        assert credit(name, *beside, std_epsilon=epsilon)[0].tolist() == [0.0] * size


@pytest.mark.parametrize("name", EVERY)
def test_unscored_members_leave_every_statistic(name):
    """The others get what they would get without it; it gets 0. Its stored number, even NaN, is never looked at."""
    rewards_PG, scored_PG = rows([1.0, None, 0.0, 0.5])
    rewards_PG[0, 1] = float("nan")
    advantages_G = credit(name, rewards_PG, scored_PG)[0]
    alone = credit(name, *rows([1.0, 0.0, 0.5]))[0]
    assert advantages_G.tolist() == [alone[0], 0.0, alone[1], alone[2]]


def test_unscored_members_by_hand():
    rewards_PG, scored_PG = rows([1.0, None, 0.0, 0.5], [None, None, 0.25, 0.75])
    rewards_PG[0, 1], rewards_PG[1, 0] = float("nan"), float("inf")
    advantages_PG = group_normalized(rewards_PG, scored_PG)
    assert advantages_PG[1].tolist() == pytest.approx([0, 0, -0.25 / (0.25 + 1e-6), 0.25 / (0.25 + 1e-6)], abs=1e-14)
    assert leave_one_out(rewards_PG, scored_PG).tolist() == [[0.75, 0, -0.75, 0], [0, 0, -0.5, 0.5]]
    assert best_and_worst(rewards_PG, scored_PG).tolist() == [[1, 0, -1, 0], [0, 0, -1, 1]]


@pytest.mark.parametrize("name", EVERY)
def test_groups_with_nothing_to_compare(name):
    """One completion, one score, no score at all, an empty batch of scores: 0 everywhere, never NaN."""
    for group in ([1.0], [None], [1.0, None, None], [None, None, None]):
        assert credit(name, *rows(group), std_epsilon=0.0).tolist() == [[0.0] * len(group)]
    mixed = credit(name, *rows([1.0, None, None], [None, None, None], [1.0, 1.0, None], [1.0, 0.0, None]))
    assert mixed[:3].abs().sum() == 0
    assert mixed[3, 0] > 0 > mixed[3, 1]


def test_fewer_than_two_scores_are_unusable_and_not_zero_variance():
    rewards_PG, scored_PG = rows([1.0, None, None], [None, None, None], [1.0, 1.0, None], [1.0, 0.0, None])
    assert find_unusable_groups(scored_PG).tolist() == [True, True, False, False]
    assert zero_variance_groups(rewards_PG, scored_PG).tolist() == [False, False, True, False]


def test_trl_setting_ddof_1_epsilon_1e_4():
    """The sample std of [1, 0, 0, 0] is 0.5."""
    advantages_G = group_normalized(*rows([1, 0, 0, 0]), std_ddof=1, std_epsilon=1e-4)[0]
    assert advantages_G.tolist() == pytest.approx([0.75 / 0.5001] + [-0.25 / 0.5001] * 3, abs=1e-14)


@pytest.mark.parametrize("function", [group_normalized, batch_std, batch_whitened])
def test_nearly_equal_rewards_keep_an_exact_variance(function):
    """1e6 and 1e6 + 2^-10: the one-pass E[x^2] - E[x]^2 has lost all digits here, two passes have not."""
    assert pytest.approx(2**-22, rel=0.5) != 0.5 * (1e6**2 + (1e6 + 2**-10) ** 2) - (1e6 + 2**-11) ** 2
    advantages_G = function(*rows([1e6, 1e6 + 2**-10]), std_epsilon=0.0)[0]
    assert advantages_G.tolist() == pytest.approx([-1.0, 1.0], abs=1e-12)


def test_rewards_that_differ_at_all_are_not_equal():
    """Equality is exact and not a tolerance: a gap of 1e-12 has a best, a worst and, without an epsilon, +-1."""
    batch = rows([1e-12, 0.0])
    assert zero_variance_groups(*batch).tolist() == [False]
    assert group_normalized(*batch, std_epsilon=0.0)[0].tolist() == pytest.approx([1.0, -1.0], abs=1e-12)
    assert best_and_worst(*batch)[0].tolist() == [1.0, -1.0]


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("name", EVERY)
def test_random_batches_against_the_slow_reference(name, ddof):
    for seed in range(25):
        groups = random_groups(seed, groups=1 + seed % 6, size=2 + seed % 7)
        ours = credit(name, *rows(*groups), std_ddof=ddof, std_epsilon=1e-4).tolist()
        theirs = reference.advantages(name, groups, ddof=ddof, epsilon=1e-4)
        assert ours == [pytest.approx(group, abs=1e-12) for group in theirs]


reward = st.floats(-10, 10, allow_nan=False).map(lambda value: round(value, 3))
group = st.lists(st.one_of(reward, st.none()), min_size=2, max_size=9)


@settings(max_examples=150, deadline=None)
@given(group, st.sampled_from(EVERY), st.integers(0, 1))
def test_any_group_against_the_slow_reference(rewards, name, ddof):
    ours = credit(name, *rows(rewards), std_ddof=ddof, std_epsilon=1e-6)[0].tolist()
    expected = reference.advantages(name, [rewards], ddof=ddof, epsilon=1e-6)[0]
    assert ours == pytest.approx(expected, abs=1e-11, rel=1e-11)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(reward, min_size=2, max_size=9),
    st.randoms(use_true_random=False),
    st.integers(-50, 50),
    st.sampled_from([0.5, 2.0, 8.0]),
)
def test_invariances(rewards, random, shift, scale):
    """Permuting rewards permutes advantages; a shift changes nothing; a scale changes nothing of the normalised ones."""
    advantages = group_normalized(*rows(rewards), std_epsilon=0.0)[0]
    order = list(range(len(rewards)))
    random.shuffle(order)
    permuted = group_normalized(*rows([rewards[place] for place in order]), std_epsilon=0.0)[0]
    assert permuted.tolist() == pytest.approx(advantages[order].tolist(), abs=1e-9)
    shifted = [reward + shift for reward in rewards]
    # Shifting may round two different rewards together; then they are equal and the comparison has no meaning.
    if len(set(shifted)) == len(set(rewards)):
        for function in (group_centered, leave_one_out):
            assert function(*rows(shifted))[0].tolist() == pytest.approx(function(*rows(rewards))[0].tolist(), abs=1e-12)
        assert group_normalized(*rows(shifted), std_epsilon=0.0)[0].tolist() == pytest.approx(advantages.tolist(), abs=1e-9)
    scaled = group_normalized(*rows([reward * scale for reward in rewards]), std_epsilon=0.0)[0]
    assert scaled.tolist() == pytest.approx(advantages.tolist(), abs=1e-12)
    assert advantages.sum().item() == pytest.approx(0.0, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(group)
def test_leave_one_out_is_the_centred_reward_stretched(rewards):
    """r - mean of the other n - 1 = n / (n - 1) (r - mean), with n the number of scores."""
    count = sum(reward is not None for reward in rewards)
    stretched = group_centered(*rows(rewards))[0] * (count / max(count - 1, 1))
    assert leave_one_out(*rows(rewards))[0].tolist() == pytest.approx(stretched.tolist(), abs=1e-12)


def test_batch_whitened_has_mean_0_and_std_1_over_the_batch():
    advantages_PG = batch_whitened(*rows([1, 0, 0.3, 1], [3, 2, 3, 7], [5, 5, 5, 5]), std_epsilon=0.0)
    assert advantages_PG.mean().item() == pytest.approx(0.0, abs=1e-15)
    assert advantages_PG.std(correction=0).item() == pytest.approx(1.0, abs=1e-14)


def test_inputs_are_not_written_to():
    for function in (NAMED["advantage"][name].function for name in EVERY):
        rewards_PG, scored_PG = rows([1.0, None, 0.0])
        before = rewards_PG.clone()
        function(rewards_PG, scored_PG)
        assert torch.equal(rewards_PG, before)


# -- from success --------------------------------------------------------------------------------------------------------


def test_binary_signed_and_uniform_by_hand():
    """Right, wrong, right but unscored, wrong and unscored. Equal groups keep their credit: nothing is compared."""
    success_PG = torch.tensor([[True, False, True, False], [True, True, True, True]])
    scored_PG = torch.tensor([[True, True, False, False], [True, True, True, False]])
    assert binary(success_PG, scored_PG).tolist() == [[1, 0, 0, 0], [1, 1, 1, 0]]
    assert binary_signed(success_PG, scored_PG).tolist() == [[1, -1, 0, 0], [1, 1, 1, 0]]
    assert uniform(scored_PG).tolist() == [[1, 1, 0, 0], [1, 1, 1, 0]]
    assert {function(success_PG, scored_PG).dtype for function in (binary, binary_signed)} == {torch.float64}
    assert binary_signed(torch.tensor([[False]]), torch.tensor([[True]])).tolist() == [[-1]]


# -- from success, against the group -------------------------------------------------------------------------------------


def judged(*groups: list[bool | None]) -> tuple[torch.Tensor, torch.Tensor]:
    """(success_PG, scored_PG); a completion that nobody judged holds what is never looked at."""
    success_PG = torch.tensor([[success is not False for success in group] for group in groups])
    return success_PG, torch.tensor([[success is not None for success in group] for group in groups])


def test_relative_to_mean_by_hand():
    """One success of four: (1 - 1/4) / (1/4) = 3 and -1. Three of four: 1/3 and -1. All or none: exactly 0."""
    found = relative_to_mean(
        *judged(
            [True, False, False, False], [True, True, True, False], [True] * 4, [False] * 4, [None, True, False, None],
            [True, None, None, None],
        )
    )  # fmt: skip
    third = pytest.approx([1 / 3] * 3 + [-1], abs=1e-15)
    assert found.tolist() == [[3, -1, -1, -1], third, [0] * 4, [0] * 4, [0, 1, -1, 0], [0] * 4]
    assert found.dtype == torch.float64


def test_relative_to_mean_against_the_slow_reference():
    for seed in range(25):
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randint(0, 3, (1 + seed % 5, 2 + seed % 6), generator=generator).tolist()
        groups = [[None if value == 2 else value == 1 for value in group] for group in drawn]
        ours = relative_to_mean(*judged(*groups)).tolist()
        assert ours == [pytest.approx(group, abs=1e-14) for group in reference.success_advantages(groups)]


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_expected_gradient_of_maxrl_is_that_of_the_harmonic_sum_of_pass_at_k(size):
    """All groups of completions of four kinds, two of them right, weighed by their probabilities: no sampling.

    E[sum_i A_i grad log pi(o_i) / G] = sum over k < G of grad pass@k / k = (1 - (1 - p)^(G - 1)) / p grad p.
    """
    right_V = torch.tensor([True, False, True, False])
    logits_V = double(0.3, 1.1, -0.9, 0.2).requires_grad_()
    logprobs_V = torch.log_softmax(logits_V, 0)
    expected_gain = torch.zeros((), dtype=torch.float64)
    for drawn in product(range(4), repeat=size):
        chosen_G = torch.tensor(drawn)
        advantages_G = relative_to_mean(right_V[chosen_G][None], torch.ones(1, size, dtype=torch.bool))[0]
        probability = logprobs_V[chosen_G].sum().exp().detach()
        expected_gain = expected_gain + probability * (advantages_G * logprobs_V[chosen_G]).mean()
    (found_V,) = torch.autograd.grad(expected_gain, logits_V, retain_graph=True)
    p = logprobs_V.exp()[right_V].sum()
    (of_sum_V,) = torch.autograd.grad(sum((1 - (1 - p) ** k) / k for k in range(1, size)), logits_V, retain_graph=True)
    (of_p_V,) = torch.autograd.grad(p, logits_V)
    weight = (1 - (1 - p.item()) ** (size - 1)) / p.item()
    assert found_V.tolist() == pytest.approx(of_sum_V.tolist(), abs=1e-14)
    assert found_V.tolist() == pytest.approx((weight * of_p_V).tolist(), abs=1e-14)
    assert found_V.abs().max() > 0.1


# -- from the parts of the reward ----------------------------------------------------------------------------------------

NAN = float("nan")


def by_parts(
    parts: dict[str, list[list[float]]], weights: dict[str, float], scored: list[list[bool]] | None = None, **words: float
) -> torch.Tensor:
    parts_PG = {name: torch.tensor(values, dtype=torch.float64) for name, values in parts.items()}
    shape = next(iter(parts_PG.values())).shape
    scored_PG = torch.ones(shape, dtype=torch.bool) if scored is None else torch.tensor(scored)
    return parts_normalized(parts_PG, weights, scored_PG, **words)


def test_parts_normalized_by_hand():
    """Part a is 1, 0 and part b 0, 0, 4, 4 in groups of two and of equals: +-1 each, whatever their scales; then weighted by 1 and 3.

    Sums: group 0 a alone, +-1; group 1 b alone, +-3; group 2 both, against each other, 1 - 3 and 3 - 1. Mean 0, squares
    2 + 18 + 8 = 28 over 6.
    """
    parts = {"a": [[1.0, 0.0], [0.5, 0.5], [1.0, 0.0]], "b": [[7.0, 7.0], [4.0, 0.0], [0.0, 4.0]]}
    found = by_parts(parts, {"a": 1.0, "b": 3.0}, std_epsilon=0.0)
    std = (28 / 6) ** 0.5
    expected = [[1 / std, -1 / std], [3 / std, -3 / std], [-2 / std, 2 / std]]
    assert found.tolist() == [pytest.approx(row, abs=1e-15) for row in expected]
    # The two epsilons, and the sample std (of +-0.5: 0.5 sqrt 2 in a group, and 6/5 over the batch).
    told = by_parts(parts, {"a": 1.0, "b": 3.0}, std_ddof=1, std_epsilon=0.1)
    z = {"a": 0.5 / (0.5 * 2**0.5 + 0.1), "b": 3 * 2.0 / (2.0 * 2**0.5 + 0.1)}
    sums = [z["a"], -z["a"], z["b"], -z["b"], z["a"] - z["b"], z["b"] - z["a"]]
    scale = (sum(value**2 for value in sums) / 5) ** 0.5 + 0.1
    assert told.flatten().tolist() == pytest.approx([value / scale for value in sums], abs=1e-14)


def test_different_combinations_of_parts_stay_different():
    """Rewards (0, 1) and (1, 0) have one sum, and the group's statistics of sums cannot tell them apart; of parts they can.

    a is sqrt 3 and -1 / sqrt 3 three times, b -1, 1, 1, -1.
    """
    parts = {"a": [[1.0, 0.0, 0.0, 0.0]], "b": [[0.0, 1.0, 1.0, 0.0]]}
    summed = group_normalized(*rows([1.0, 1.0, 1.0, 0.0]))[0]
    assert summed[0] == summed[1]
    found = by_parts(parts, {"a": 1.0, "b": 1.0}, std_epsilon=0.0)[0]
    sums = double(3**0.5 - 1, 1 - 3**-0.5, 1 - 3**-0.5, -1 - 3**-0.5)
    assert found.tolist() == pytest.approx((sums / sums.square().mean().sqrt()).tolist(), abs=1e-14)
    assert found[0] > found[1] + 0.3


def test_a_part_that_abstains_is_equal_or_weighs_nothing_leaves_the_sum():
    parts = {
        "a": [[1.0, 0.0, NAN, 0.5]],
        "b": [[NAN, 2.0, 0.0, 1.0]],
        "c": [[3.0] * 4],
        "d": [[0.0, 9.0, 1.0, 5.0]],
        "e": [[NAN, 1.0, NAN, NAN]],
    }
    weights = {"a": 1.0, "b": 2.0, "c": 5.0, "d": 0.0, "e": 1.0}
    root = 1.5**0.5  # 1, 0, 0.5 and 2, 0, 1 have stds of 1 / sqrt 6 and 2 / sqrt 6
    sums = double(root, -root + 2 * root, -2 * root, 0.0)
    std = sums.square().mean().sqrt()
    found = by_parts(parts, weights, std_epsilon=0.0)[0]
    assert found.tolist() == pytest.approx((sums / std).tolist(), abs=1e-14)
    without = by_parts({name: parts[name] for name in "ab"}, weights, std_epsilon=0.0)[0]
    assert found.tolist() == without.tolist()


def test_unscored_completions_leave_every_statistic_of_every_part():
    """The third is unscored and the second group has one score: neither is in a mean, a std, or the std over the batch."""
    parts = {
        "a": [[1.0, 0.0, 50.0], [3.0, 8.0, 9.0], [0.0, 1.0, 1.0]],
        "b": [[0.0, 1.0, NAN], [1.0, 0.0, 0.0], [5.0, 5.0, 5.0]],
    }
    scored = [[True, True, False], [True, False, False], [True, True, True]]
    weights = {"a": 1.0, "b": 0.25}
    found = by_parts(parts, weights, scored)
    assert found[0, 2] == 0
    assert found[1].tolist() == [0.0] * 3
    theirs = reference.part_advantages(
        {name: [[None if math.isnan(v) else v for v in row] for row in rows_] for name, rows_ in parts.items()}, weights, scored
    )
    assert found.tolist() == [pytest.approx(row, abs=1e-14) for row in theirs]


@pytest.mark.parametrize("value", [0.35, 0.1 + 0.2, 1e8 + 0.1])
def test_parts_that_are_all_equal_give_exactly_zero(value):
    for epsilon in (1e-6, 0.0):
        found = by_parts({"a": [[value] * 3], "b": [[value] * 3]}, {"a": 1.0, "b": 2.0}, std_epsilon=epsilon)
        assert found.tolist() == [[0.0] * 3]
        beside = by_parts({"a": [[value] * 3, [0.0, 1.0, 0.1]]}, {"a": 1.0}, std_epsilon=epsilon)
        assert beside[0].tolist() == [0.0] * 3
        assert by_parts({"a": [[value, NAN]]}, {"a": 1.0}, std_epsilon=epsilon).tolist() == [[0.0, 0.0]]
    assert parts_normalized({}, {}, torch.ones(1, 2, dtype=torch.bool)).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("ddof", [0, 1])
def test_parts_of_random_batches_against_the_slow_reference(ddof):
    """Ties, abstentions, unscored members, lone scores; the mean that whitening subtracts is 0 already."""
    for seed in range(25):
        shape = (1 + seed % 6, 2 + seed % 5)
        parts = {name: random_groups(100 * seed + place, *shape) for place, name in enumerate("abc")}
        scored = (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.9).tolist()
        weights = {"a": 1.0, "b": 0.3, "c": -0.5}
        numbers = {
            name: [[NAN if value is None else value for value in row] for row in groups] for name, groups in parts.items()
        }
        ours = by_parts(numbers, weights, scored, std_ddof=ddof, std_epsilon=1e-4)
        theirs = reference.part_advantages(parts, weights, scored, ddof=ddof, epsilon=1e-4)
        assert ours.tolist() == [pytest.approx(group, abs=1e-12) for group in theirs]
        assert ours.sum().item() == pytest.approx(0.0, abs=1e-12)


# -- process supervision -------------------------------------------------------------------------------------------------


def test_process_by_hand():
    """Two completions: four tokens with steps ending at 1 and 3 (rewards 1, 0), three tokens with one step (reward 2).

    Rewards 1, 0, 2: mean 1, std sqrt(2/3), so 0, -s and +s with s = sqrt(3/2). The first two tokens of the first completion
    are credited with both of its steps, the next two with the second alone.
    """
    s = 1.5**0.5
    found = credit_steps([[(1, 1.0), (3, 0.0)], [(2, 2.0)]], [4, 3], std_epsilon=0.0)
    assert [row.tolist() for row in found] == [pytest.approx([-s] * 4, abs=1e-15), pytest.approx([s] * 3, abs=1e-15)]
    # Steps worth 3, 1 and 2, 2: mean 2, std sqrt(1/2): the sum over later steps is 0, then -sqrt 2; and 0 throughout.
    root = 2**0.5
    found = credit_steps([[(0, 3.0), (2, 1.0)], [(0, 2.0), (1, 2.0)]], [3, 2], std_epsilon=0.0)
    assert found[0].tolist() == pytest.approx([0.0, -root, -root], abs=1e-15)
    assert found[1].tolist() == [0.0, 0.0]


def test_process_tokens_after_the_last_step_and_two_steps_on_one_token():
    """What follows the last step is credited with nothing; a token that ends two steps with both of them."""
    found = credit_steps([[(1, 2.0), (1, 1.0)], [(0, 0.0)]], [4, 1], std_epsilon=0.0)
    scale = (2 / 3) ** 0.5
    assert found[0].tolist() == pytest.approx([1 / scale, 1 / scale, 0.0, 0.0], abs=1e-15)
    assert found[1].tolist() == pytest.approx([-1 / scale], abs=1e-15)


@pytest.mark.parametrize("ddof", [0, 1])
def test_process_with_one_step_at_the_end_is_group_normalized(ddof):
    for seed in range(10):
        rewards = random_groups(seed, groups=1, size=6)[0]
        lengths = [1 + (seed + place) % 4 for place in range(6)]
        steps = [None if reward is None else [(length - 1, reward)] for reward, length in zip(rewards, lengths, strict=True)]
        outcome = group_normalized(*rows(rewards), std_ddof=ddof)[0].tolist()
        for tokens, advantage, length in zip(credit_steps(steps, lengths, std_ddof=ddof), outcome, lengths, strict=True):
            assert tokens.tolist() == pytest.approx([advantage] * length, abs=1e-12)


@pytest.mark.parametrize("ddof", [0, 1])
def test_process_against_the_slow_reference(ddof):
    generator = torch.Generator().manual_seed(ddof)
    for _ in range(30):
        lengths = torch.randint(1, 9, (5,), generator=generator).tolist()
        steps: list[list[tuple[int, float]] | None] = []
        for length in lengths:
            count = int(torch.randint(0, 4, (), generator=generator))
            ends = sorted(torch.randint(0, length, (count,), generator=generator).tolist())
            values = (torch.randint(0, 3, (count,), generator=generator) / 2).tolist()
            steps.append(list(zip(ends, values, strict=True)) if count else None)
        ours = credit_steps(steps, lengths, std_ddof=ddof, std_epsilon=1e-4)
        theirs = reference.process_advantages(steps, lengths, ddof=ddof, epsilon=1e-4)
        assert [row.tolist() for row in ours] == [pytest.approx(row, abs=1e-12) for row in theirs]


def test_process_without_differences_is_exactly_zero():
    for steps in ([[(0, 0.35), (2, 0.35)], [(1, 0.35)] * 5], [None, None], [None, [(1, 0.35)]]):
        assert [row.tolist() for row in credit_steps(steps, [3, 2], std_epsilon=0.0)] == [[0.0] * 3, [0.0] * 2]


# -- returns and GAE -----------------------------------------------------------------------------------------------------


def test_gae_by_hand():
    """Rewards 0, 0, 1 and values .5, .6, .8 with gamma 1: surprises .1, .2, .2.

    lambda 0: the surprises. lambda 1: the return minus the value. lambda .95: .2, then .2 + .19, then .1 + .95 * .39.
    """
    rewards_T, values_T = double(0, 0, 1), double(0.5, 0.6, 0.8)
    assert gae(rewards_T, values_T, 1.0, 0.0).tolist() == pytest.approx([0.1, 0.2, 0.2], abs=1e-15)
    assert gae(rewards_T, values_T, 1.0, 1.0).tolist() == pytest.approx([0.5, 0.4, 0.2], abs=1e-15)
    assert gae(rewards_T, values_T, 1.0, 0.95).tolist() == pytest.approx([0.4705, 0.39, 0.2], abs=1e-15)
    # gamma .5: surprises .3 - .5, .4 - .6, .2; lambda .5 carries a quarter: .2, -.2 + .05, -.2 - .0375.
    assert gae(rewards_T, values_T, 0.5, 0.5).tolist() == pytest.approx([-0.2375, -0.15, 0.2], abs=1e-15)


def test_returns_by_hand():
    assert returns_to_go(double(-0.1, 0.2, 1.0)).tolist() == pytest.approx([1.1, 1.2, 1.0], abs=1e-15)
    assert returns_to_go(double(-0.1, 0.2, 1.0), 0.5).tolist() == pytest.approx([-0.1 + 0.1 + 0.25, 0.7, 1.0], abs=1e-15)


def test_gae_and_returns_against_the_definition():
    generator = torch.Generator().manual_seed(0)
    for length in range(1, 12):
        rewards_T = torch.randn(length, generator=generator, dtype=torch.float64)
        values_T = torch.randn(length, generator=generator, dtype=torch.float64)
        for gamma in (0.7, 0.99, 1.0):
            for lam in (0.0, 0.5, 0.95, 1.0):
                expected = reference.gae_advantages(rewards_T.tolist(), values_T.tolist(), gamma, lam)
                assert gae(rewards_T, values_T, gamma, lam).tolist() == pytest.approx(expected, abs=1e-12)
            returns = reference.token_returns(rewards_T.tolist(), gamma)
            assert returns_to_go(rewards_T, gamma).tolist() == pytest.approx(returns, abs=1e-12)
            assert gae(rewards_T, torch.zeros(length), gamma, 1.0).tolist() == pytest.approx(returns, abs=1e-12)
            less_values = [value - own for value, own in zip(returns, values_T.tolist(), strict=True)]
            assert gae(rewards_T, values_T, gamma, 1.0).tolist() == pytest.approx(less_values, abs=1e-12)


def test_a_perfect_critic_leaves_no_advantage():
    """Values equal to the returns: every surprise is 0, for every lambda."""
    rewards_T = double(0.5, -1.0, 0.25, 1.0)
    for lam in (0.0, 0.95, 1.0):
        assert gae(rewards_T, returns_to_go(rewards_T), 1.0, lam).abs().max().item() < 1e-15


# -- whitening -----------------------------------------------------------------------------------------------------------


def test_whitening_by_hand():
    """Values 1, 3 and 5, 7 together: mean 4, variance 5; with ddof 1, 20/3."""
    root = 5**0.5
    found = whiten([double(1, 3), double(5, 7)], std_epsilon=0.0)
    assert [row.tolist() for row in found] == [
        pytest.approx([-3 / root, -1 / root], abs=1e-15),
        pytest.approx([1 / root, 3 / root], abs=1e-15),
    ]
    found = whiten([double(1, 3), double(5, 7)], std_ddof=1, std_epsilon=0.1)
    assert found[1][1].item() == pytest.approx(3 / (math.sqrt(20 / 3) + 0.1), abs=1e-15)


def test_whitening_against_the_slow_reference_and_its_edges():
    generator = torch.Generator().manual_seed(1)
    for ddof in (0, 1):
        batch = [torch.randn(length, generator=generator, dtype=torch.float64) for length in (1, 4, 2, 7)]
        expected = reference.whitened([row.tolist() for row in batch], ddof=ddof)
        ours = whiten(batch, std_ddof=ddof)
        assert [row.tolist() for row in ours] == [pytest.approx(row, abs=1e-12) for row in expected]
    assert whiten([]) == []
    assert [row.tolist() for row in whiten([double(0.35, 0.35), double(0.35)], std_epsilon=0.0)] == [[0.0, 0.0], [0.0]]
    assert [row.tolist() for row in whiten([double(0.35)], std_ddof=1, std_epsilon=0.0)] == [[0.0]]


def test_global_normalisation_needs_no_group():
    """REINFORCE++ with one completion per prompt: rewards 1, 0, 0 over 2, 1, 3 tokens.

    Returns are 1, 1 | 0 | 0, 0, 0: mean 1/3, std sqrt(2)/3, so sqrt 2 for the right one and -1/sqrt 2 for the wrong ones.
    """
    returns = [returns_to_go(double(*tokens)) for tokens in ([0, 1], [0], [0, 0, 0])]
    found = whiten(returns, std_epsilon=0.0)
    assert found[0].tolist() == pytest.approx([2**0.5] * 2, abs=1e-14)
    assert found[1].tolist() == pytest.approx([-(2**-0.5)], abs=1e-14)
    assert found[2].tolist() == pytest.approx([-(2**-0.5)] * 3, abs=1e-14)
