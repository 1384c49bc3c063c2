"""The soft overlong penalty: 0 up to L_max - L_cache, linear to -1 at L_max, -1 when cut; the reward pays, success does not."""

from __future__ import annotations

import pytest

from cohort.rewards.contract import Scored
from cohort.rewards.penalties import overlong_penalty
from cohort.training.rollouts import penalize_overlong
from cohort.types import UNSCORED, Completion, Outcome


def completion(length: int, end: str = "stop", mask: tuple[bool, ...] | None = None) -> Completion:
    return Completion(tuple(range(length)), (0.0,) * length, end=end, text="x" * length, sampled_mask=mask)


@pytest.mark.parametrize(
    ("length", "penalty"), [(1, 0.0), (79, 0.0), (80, 0.0), (81, -0.05), (85, -0.25), (90, -0.5), (95, -0.75), (100, -1.0), (120, -1.0)]
)  # fmt: skip
def test_by_hand(length, penalty):
    """L_max 100, L_cache 20."""
    assert overlong_penalty(length, 100, 20) == pytest.approx(penalty, abs=1e-15)
    assert -1.0 <= overlong_penalty(length, 100, 20) <= 0.0


def test_the_numbers_of_the_paper():
    """DAPO: 16384 expected, a cache of 4096, 20480 at most."""
    assert overlong_penalty(16384, 20480, 4096) == 0.0
    assert overlong_penalty(18432, 20480, 4096) == -0.5
    assert overlong_penalty(20480, 20480, 4096) == -1.0


def test_a_share_of_1_starts_at_the_first_token():
    assert overlong_penalty(25, 100, 100) == -0.25


def test_the_reward_pays_and_success_does_not():
    """Longest 10, share 0.4: the penalty begins after 6 tokens. A completion that was cut loses 1 whatever its length."""
    outcomes = [
        Outcome({"r": 1.0}, 1.0, True, answer="a"),
        Outcome({"r": 1.0}, 1.0, True),
        Outcome({"r": 0.0}, 0.0, False),
        Outcome({"r": 1.0}, 1.0, True),
        UNSCORED,
    ]
    completions = [completion(6), completion(8), completion(10), completion(7, end="length"), completion(8)]
    scored = penalize_overlong(Scored(outcomes, {"reward/mean": 0.75, "reward/faults": 2}), completions, 10, 0.4)
    assert [outcome.reward for outcome in scored.outcomes] == [1.0, 0.5, -1.0, 0.0, None]
    assert [outcome.success for outcome in scored.outcomes] == [True, True, False, True, None]
    assert [outcome.parts.get("overlong") for outcome in scored.outcomes] == [0.0, -0.5, -1.0, -1.0, None]
    assert [outcome.parts.get("r") for outcome in scored.outcomes] == [1.0, 1.0, 0.0, 1.0, None]
    assert scored.outcomes[0].answer == "a"
    assert scored.metrics["reward/mean"] == pytest.approx(0.125)
    assert scored.metrics["reward/std"] == pytest.approx(((0.875**2 + 0.375**2 + 1.125**2 + 0.125**2) / 4) ** 0.5)
    assert scored.metrics["reward/overlong/mean"] == pytest.approx((0 - 0.5 - 1 - 1 - 0.5) / 5)
    assert scored.metrics["reward/faults"] == 2
    # What was given is not written to.
    assert outcomes[1].reward == 1.0
    assert "overlong" not in outcomes[1].parts


def test_lengths_are_of_sampled_tokens():
    """Ten tokens of which the policy sampled six: no penalty, as tool output is not the policy's."""
    masked = completion(10, mask=(True,) * 6 + (False,) * 4)
    scored = penalize_overlong(Scored([Outcome({"r": 1.0}, 1.0, True)], {}), [masked], 10, 0.4)
    assert scored.outcomes[0].reward == 1.0


def test_with_process_supervision_the_penalty_is_paid_at_the_end():
    """Steps of a completion near the limit: its last tokens must be able to learn that stopping earlier would have paid."""
    outcome = Outcome({"r": 0.5}, 0.5, True, steps=((3, 1.0), (8, 0.0)))
    scored = penalize_overlong(Scored([outcome], {}), [completion(8)], 10, 0.4)
    (paid,) = scored.outcomes
    assert paid.reward == 0.0
    assert sum(reward for _, reward in paid.steps) == pytest.approx(1.0 - 0.5)
    assert sum(reward for end, reward in paid.steps if end < 8) == 1.0
    assert paid.steps[-1][0] == 8
