"""Advantages are the group's own statistics: worked numbers, awkward floats, missing scores, invariances."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.algorithms.advantages import group_centered, group_normalized, unusable_groups, zero_variance_groups
from reference import reference_advantages


def rows(*groups: list[float | None]) -> tuple[torch.Tensor, torch.Tensor]:
    rewards_PG = torch.tensor(
        [[0.0 if reward is None else reward for reward in group] for group in groups], dtype=torch.float64
    )
    scored_PG = torch.tensor([[reward is not None for reward in group] for group in groups])
    return rewards_PG, scored_PG


def test_the_worked_example():
    """Mean .625, std sqrt(.625 * .375) = .484: a right answer gets +0.7746, a wrong one -1.2910."""
    advantages_G = group_normalized(*rows([1, 0, 1, 0, 1, 1, 0, 1]))[0]
    std = (0.625 * 0.375) ** 0.5
    assert std == pytest.approx(0.484, abs=2e-4)
    expected = [(reward - 0.625) / (std + 1e-6) for reward in [1, 0, 1, 0, 1, 1, 0, 1]]
    assert advantages_G.tolist() == pytest.approx(expected, abs=1e-14)
    assert advantages_G[0].item() == pytest.approx(0.77, abs=5e-3)
    assert advantages_G[1].item() == pytest.approx(-1.29, abs=5e-3)
    assert group_centered(*rows([1, 0, 1, 0, 1, 1, 0, 1]))[0].tolist() == [
        0.375,
        -0.625,
        0.375,
        -0.625,
        0.375,
        0.375,
        -0.625,
        0.375,
    ]


def test_one_failure_among_seven_nearly_equal_rewards():
    """[0] + [0.95] * 7: std is 0.95 sqrt(7)/8, so -sqrt(7) and 1/sqrt(7), up to epsilon."""
    advantages_G = group_normalized(*rows([0.0] + [0.95] * 7), epsilon=0.0)[0]
    assert advantages_G.tolist() == pytest.approx([-(7**0.5)] + [7**-0.5] * 7, abs=1e-13)


@pytest.mark.parametrize("value", [0.35, 0.1 + 0.2, 1 / 3, -1e-3, 1e8 + 0.1, 0.0, 5e-324])
@pytest.mark.parametrize("size", [2, 3, 7, 8])
@pytest.mark.parametrize("function", [group_normalized, group_centered])
@pytest.mark.parametrize("epsilon", [1e-6, 1e-4, 0.0])
def test_equal_rewards_give_exactly_zero(value, size, function, epsilon):
    """Not "small": 0.0, whatever the rounding of the mean does, also with an epsilon of zero."""
    rewards_PG, scored_PG = rows([value] * size)
    assert function(rewards_PG, scored_PG, epsilon=epsilon).tolist() == [[0.0] * size]
    assert zero_variance_groups(rewards_PG, scored_PG).tolist() == [True]


def test_unscored_members_leave_mean_and_std():
    """The others get what they would get without it; it gets 0. Its stored number, even NaN, is never looked at."""
    rewards_PG, scored_PG = rows([1.0, None, 0.0, 0.5], [None, None, 0.25, 0.75])
    rewards_PG[0, 1], rewards_PG[1, 0] = float("nan"), float("inf")
    advantages_PG = group_normalized(rewards_PG, scored_PG)
    alone = group_normalized(*rows([1.0, 0.0, 0.5]))[0]
    assert advantages_PG[0].tolist() == [alone[0], 0.0, alone[1], alone[2]]
    assert advantages_PG[1].tolist() == pytest.approx([0, 0, -0.25 / (0.25 + 1e-6), 0.25 / (0.25 + 1e-6)], abs=1e-14)


def test_fewer_than_two_scores_are_unusable_and_not_zero_variance():
    rewards_PG, scored_PG = rows([1.0, None, None], [None, None, None], [1.0, 1.0, None], [1.0, 0.0, None])
    assert unusable_groups(scored_PG).tolist() == [True, True, False, False]
    assert zero_variance_groups(rewards_PG, scored_PG).tolist() == [False, False, True, False]
    advantages_PG = group_normalized(rewards_PG, scored_PG)
    assert advantages_PG[:3].abs().sum() == 0
    assert advantages_PG[3, 0] > 0


def test_trl_setting_ddof_1_epsilon_1e_4():
    """The sample std of [1, 0, 0, 0] is 0.5."""
    advantages_G = group_normalized(*rows([1, 0, 0, 0]), ddof=1, epsilon=1e-4)[0]
    assert advantages_G.tolist() == pytest.approx([0.75 / 0.5001] + [-0.25 / 0.5001] * 3, abs=1e-14)


def test_nearly_equal_rewards_keep_an_exact_variance():
    """1e6 and 1e6 + 2^-10: the one-pass E[x^2] - E[x]^2 has lost all digits here, two passes have not."""
    assert pytest.approx(2**-22, rel=0.5) != 0.5 * (1e6**2 + (1e6 + 2**-10) ** 2) - (1e6 + 2**-11) ** 2
    advantages_G = group_normalized(*rows([1e6, 1e6 + 2**-10]), epsilon=0.0)[0]
    assert advantages_G.tolist() == pytest.approx([-1.0, 1.0], abs=1e-12)


reward = st.floats(-10, 10, allow_nan=False).map(lambda value: round(value, 3))
group = st.lists(st.one_of(reward, st.none()), min_size=2, max_size=9)


@settings(max_examples=150, deadline=None)
@given(group, st.booleans(), st.integers(0, 1))
def test_against_the_slow_reference(rewards, normalize, ddof):
    function = group_normalized if normalize else group_centered
    ours = function(*rows(rewards), ddof=ddof)[0].tolist()
    assert ours == pytest.approx(reference_advantages(rewards, normalize=normalize, ddof=ddof), abs=1e-11, rel=1e-11)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(reward, min_size=2, max_size=9),
    st.randoms(use_true_random=False),
    st.integers(-50, 50),
    st.sampled_from([0.5, 2.0, 8.0]),
)
def test_invariances(rewards, random, shift, scale):
    """Permuting rewards permutes advantages; a shift changes nothing; a scale changes nothing of the normalised ones."""
    advantages = group_normalized(*rows(rewards), epsilon=0.0)[0]
    order = list(range(len(rewards)))
    random.shuffle(order)
    permuted = group_normalized(*rows([rewards[place] for place in order]), epsilon=0.0)[0]
    assert permuted.tolist() == pytest.approx(advantages[order].tolist(), abs=1e-9)
    shifted = [reward + shift for reward in rewards]
    # Shifting may round two different rewards together; then they are equal and the comparison has no meaning.
    if len(set(shifted)) == len(set(rewards)):
        assert group_centered(*rows(shifted))[0].tolist() == pytest.approx(
            group_centered(*rows(rewards))[0].tolist(), abs=1e-12
        )
        assert group_normalized(*rows(shifted), epsilon=0.0)[0].tolist() == pytest.approx(advantages.tolist(), abs=1e-9)
    scaled = group_normalized(*rows([reward * scale for reward in rewards]), epsilon=0.0)[0]
    assert scaled.tolist() == pytest.approx(advantages.tolist(), abs=1e-12)
    assert advantages.sum().item() == pytest.approx(0.0, abs=1e-9)


def test_inputs_are_not_written_to():
    rewards_PG, scored_PG = rows([1.0, None, 0.0])
    before = rewards_PG.clone()
    group_normalized(rewards_PG, scored_PG)
    assert torch.equal(rewards_PG, before)
