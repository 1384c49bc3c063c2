"""The adaptive KL coefficient: the published rule by hand, and a toy policy that it brings to its target."""

import json
import math

import numpy as np
import pytest

from cohort.training.stages import move_coefficient


class Control:
    """The coefficient of a run, moved step by step."""

    def __init__(self, coef: float, target: float) -> None:
        self.start, self.target, self.coef = coef, target, coef

    def update(self, kl: float | None) -> None:
        self.coef = move_coefficient(self.start, self.target, self.coef, kl)


class ToyPolicy:
    """A Gaussian of unit width that is paid r per unit of its mean: reward r m, KL m^2 / 2, so the best mean is r / coef
    and its KL r^2 / (2 coef^2). It goes a share of the way there in each step."""

    def __init__(self, reward: float = 1.0, speed: float = 0.3) -> None:
        self.reward, self.speed, self.mean = reward, speed, 0.0

    def step(self, coef: float) -> float:
        self.mean += self.speed * (self.reward / coef - self.mean)
        return self.mean**2 / 2

    def right_coef(self, target: float) -> float:
        return self.reward / math.sqrt(2 * target)


def test_the_rule_by_hand():
    control = Control(coef=0.1, target=4.0)
    control.update(4.4)  # error 0.1
    assert control.coef == pytest.approx(0.1 * 1.01, rel=1e-12)
    control.update(3.8)  # error -0.05
    assert control.coef == pytest.approx(0.1 * 1.01 * 0.995, rel=1e-12)
    control.update(4.0)
    assert control.coef == pytest.approx(0.1 * 1.01 * 0.995, rel=1e-12)


@pytest.mark.parametrize(("kl", "factor"), [(4.8, 1.02), (400.0, 1.02), (3.2, 0.98), (0.0, 0.98), (-1.0, 0.98)])
def test_one_step_moves_it_by_two_per_cent_at_most(kl, factor):
    control = Control(coef=0.1, target=4.0)
    control.update(kl)
    assert control.coef == pytest.approx(0.1 * factor, rel=1e-12)


@pytest.mark.parametrize("kl", [math.nan, math.inf, -math.inf, None])
def test_a_kl_that_was_not_measured_changes_nothing(kl):
    control = Control(coef=0.1, target=4.0)
    control.update(kl)
    assert control.coef == 0.1


def test_without_a_target_it_is_a_constant():
    for coef in (0.04, 0.0):
        control = Control(coef, target=0.0)
        for kl in (0.0, 3.0, 1e9):
            control.update(kl)
        assert control.coef == coef


@pytest.mark.parametrize("wrong_by", [0.01, 0.1, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("speed", [1.0, 0.3])
def test_it_holds_the_target_from_100_times_too_small_and_too_large(wrong_by, speed):
    """log(100) / log(1.02) = 233 steps to cross the distance; at 300, and ever after, the KL is within 10 %."""
    policy, target = ToyPolicy(speed=speed), 2.0
    control = Control(wrong_by * policy.right_coef(target), target)
    kls = []
    for _ in range(500):
        kls.append(policy.step(control.coef))
        control.update(kls[-1])
    if wrong_by != 1.0:
        assert abs(kls[20] / target - 1) > 0.5, "the toy starts far from its target, so the test has something to show"
    assert all(abs(kl / target - 1) < 0.1 for kl in kls[300:])
    assert control.coef == pytest.approx(policy.right_coef(target), rel=0.05)


def test_it_holds_a_noisy_kl_on_average():
    rng, policy, target = np.random.default_rng(0), ToyPolicy(), 2.0
    control = Control(100 * policy.right_coef(target), target)
    kls = []
    for _ in range(800):
        kls.append(policy.step(control.coef))
        control.update(kls[-1] * rng.lognormal(-0.045, 0.3))  # mean 1, spread 30 %
    assert np.mean(kls[300:]) == pytest.approx(target, rel=0.1)


def test_a_long_quiet_start_does_not_carry_it_out_of_reach():
    """10,000 steps of no KL would take 0.98^10000 = 1e-88; from the bound of 1000 the way back is 350 steps."""
    policy, target = ToyPolicy(), 2.0
    control = Control(policy.right_coef(target), target)
    start = control.coef
    for _ in range(10_000):
        control.update(0.0)
    assert control.coef == pytest.approx(start / 1000, rel=1e-12)
    for _ in range(420):
        kl = policy.step(control.coef)
        control.update(kl)
    assert kl == pytest.approx(target, rel=0.1)
    for _ in range(10_000):
        control.update(1e6)
    assert control.coef == pytest.approx(start * 1000, rel=1e-12)


def test_the_state_is_one_plain_number_and_goes_on_bit_for_bit():
    kls = np.random.default_rng(1).uniform(0, 8, 60).tolist()
    straight, first = Control(0.3, 4.0), Control(0.3, 4.0)
    for kl in kls:
        straight.update(kl)
    for kl in kls[:25]:
        first.update(kl)
    second = Control(0.3, 4.0)
    second.coef = json.loads(json.dumps(first.coef))
    for kl in kls[25:]:
        second.update(kl)
    assert type(straight.coef) is float
    assert second.coef == straight.coef != 0.3
