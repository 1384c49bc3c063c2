"""KL estimators on a vocabulary of eight, where every expectation is a sum: which of them has the gradient of the KL.

Nothing is sampled. An estimator is a number per outcome x; the expected gradient of a loss is sum_x p(x) grad loss(x), with
p the distribution that sampled, held fixed. In the reward an estimator acts as a score-function term,
sum_x pi(x) k(x) grad log pi(x), since minus it is added to the advantage. `pytest -s` prints the table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cohort.algorithms.named import NAMED
from cohort.algorithms.regions import corrected, k1, k2, k3, ratio
from cohort.model.packing import MicroBatch
from cohort.model.policy import TokenScores
from cohort.ops.layout import Selection, lay_out
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.training.objective import token_loss

ESTIMATORS = {name: choice.function for name, choice in NAMED["kl"].items()}
NAMES = sorted(ESTIMATORS)


def double(*values: float, grad: bool = False) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


# -- values by hand ------------------------------------------------------------------------------------------------------


def test_the_three_estimators_by_hand():
    """g = log policy - log ref: g, g^2 / 2 and exp(-g) + g - 1; gradients 1, g and 1 - exp(-g)."""
    for gap in (0.5, -0.75, 2.0):
        for estimator, value, slope in (
            (k1, gap, 1.0),
            (k2, gap * gap / 2, gap),
            (k3, math.exp(-gap) + gap - 1, 1 - math.exp(-gap)),
        ):
            policy_M = double(gap - 1.0, grad=True)
            kl_M = estimator(policy_M, double(-1.0))
            kl_M.sum().backward()
            assert kl_M.item() == pytest.approx(value, abs=1e-15)
            assert policy_M.grad.item() == pytest.approx(slope, abs=1e-15)


def test_k3_by_hand():
    """d = log ref - log policy: exp(d) - d - 1, gradient 1 - exp(d); exactly 0 with gradient exactly 0 at equality."""
    policy_M, ref_M = double(-1.0, -1.0, -1.0, -30.5, grad=True), double(-1.0, -1.5, -0.25, -0.5)
    kl_M = k3(policy_M, ref_M)
    kl_M[:3].sum().backward()
    assert kl_M[0].item() == 0.0
    assert kl_M[1].item() == pytest.approx(math.exp(-0.5) + 0.5 - 1, abs=1e-15)
    assert kl_M[2].item() == pytest.approx(math.exp(0.75) - 0.75 - 1, abs=1e-15)
    assert policy_M.grad[:3].tolist() == pytest.approx([0.0, 1 - math.exp(-0.5), 1 - math.exp(0.75)], abs=1e-15)
    assert policy_M.grad[0].item() == 0.0


def test_k3_still_pulls_where_the_policy_has_left_the_reference_far_behind():
    """Policy e^25 times as likely as the reference: the gradient must be 1, not cut off by the guard against overflow."""
    policy_M = double(-0.1, grad=True)
    kl_M = k3(policy_M, double(-25.1))
    kl_M.backward()
    assert kl_M.item() == pytest.approx(24.0, abs=1e-9)
    assert policy_M.grad.item() == pytest.approx(1.0, abs=1e-9)


@settings(max_examples=200, deadline=None)
@given(st.floats(-50, 0), st.floats(-50, 0))
def test_k2_and_k3_are_never_negative(policy, ref):
    assert k2(double(policy), double(ref)).item() >= 0.0
    assert k3(double(policy), double(ref)).item() >= 0.0


def test_k3_is_exact_near_equality():
    """A gap of 1e-9: k3 is g^2 / 2, which exp(-g) + g - 1 in floats has lost entirely."""
    assert k3(double(-1.0), double(-1.0 - 1e-9)).item() == pytest.approx(5e-19, rel=1e-6)


@pytest.mark.parametrize("estimator", [k2, k3])
def test_a_step_on_the_sampled_token_has_the_right_sign(estimator):
    """A step against its gradient makes the divergence of the sampled token smaller, from either side."""
    for start in (-0.5, -3.0):
        policy_M, ref_M = double(start, grad=True), double(-1.5)
        before = estimator(policy_M, ref_M)
        before.backward()
        after = estimator(policy_M.detach() - 0.05 * policy_M.grad, ref_M)
        assert after.item() < before.item()


# -- expected gradients --------------------------------------------------------------------------------------------------


@dataclass
class Vocabulary:
    """Logits of a policy, a reference and the policy that sampled, over eight tokens."""

    logits_V: Tensor
    ref_V: Tensor
    old_V: Tensor

    @property
    def log_policy_V(self) -> Tensor:
        return torch.log_softmax(self.logits_V, 0)

    @property
    def log_ref_V(self) -> Tensor:
        return torch.log_softmax(self.ref_V, 0)

    @property
    def log_old_V(self) -> Tensor:
        return torch.log_softmax(self.old_V, 0)

    def gradient(self, value: Tensor) -> Tensor:
        return torch.autograd.grad(value, self.logits_V)[0]

    def exact(self) -> Tensor:
        """KL(policy || reference), by its definition."""
        return (self.log_policy_V.exp() * (self.log_policy_V - self.log_ref_V)).sum()

    def reversed(self) -> Tensor:
        """KL(reference || policy)."""
        return (self.log_ref_V.exp() * (self.log_ref_V - self.log_policy_V)).sum()

    def in_loss(self, name: str, correct: bool) -> Tensor:
        """Expected gradient of the estimator in the loss, under the policy that sampled."""
        log_policy_V = self.log_policy_V
        kl_V = ESTIMATORS[name](log_policy_V, self.log_ref_V)
        if correct:
            kl_V = corrected(kl_V, ratio(log_policy_V, self.log_old_V))
        return self.gradient((self.log_old_V.exp() * kl_V).sum())

    def in_reward(self, name: str) -> Tensor:
        """What subtracting the estimator from the reward does to the gradient of the loss, on-policy."""
        log_policy_V = self.log_policy_V
        kl_V = ESTIMATORS[name](log_policy_V, self.log_ref_V).detach()
        return self.gradient((log_policy_V.exp().detach() * kl_V * log_policy_V).sum())


def vocabulary(seed: int = 3, *, distance: float = 1.0, staleness: float = 0.0) -> Vocabulary:
    generator = torch.Generator().manual_seed(seed)
    start_V, away_V, drift_V = (torch.randn(8, generator=generator, dtype=torch.float64) for _ in range(3))
    logits_V = start_V.clone().requires_grad_()
    return Vocabulary(logits_V, start_V + distance * away_V, start_V + staleness * drift_V)


def error(found_V: Tensor, exact_V: Tensor) -> float:
    return (found_V - exact_V).abs().max().item()


def share(found_V: Tensor, exact_V: Tensor) -> float:
    """Size of the error beside the exact gradient."""
    return ((found_V - exact_V).norm() / exact_V.norm()).item()


def test_values_averaged_over_all_outcomes():
    """k1 and k3 have the KL as their mean; k2 has not, and near the reference nearly has."""
    case = vocabulary()
    mean = {
        name: (case.log_policy_V.exp() * ESTIMATORS[name](case.log_policy_V, case.log_ref_V)).sum().item() for name in NAMES
    }
    assert mean["k1"] == pytest.approx(case.exact().item(), abs=1e-14)
    assert mean["k3"] == pytest.approx(case.exact().item(), abs=1e-14)
    assert abs(mean["k2"] - case.exact().item()) > 0.1
    close = vocabulary(distance=1e-3)
    near = (close.log_policy_V.exp() * k2(close.log_policy_V, close.log_ref_V)).sum().item()
    assert near == pytest.approx(close.exact().item(), rel=1e-2)


@pytest.mark.parametrize("seed", range(5))
def test_which_gradients_are_that_of_the_kl_on_policy(seed):
    case = vocabulary(seed)
    exact_V, reversed_V = case.gradient(case.exact()), case.gradient(case.reversed())
    assert exact_V.abs().max().item() > 0.05
    right = {
        "k2 in the loss": case.in_loss("k2", False),
        "k1 in the loss, corrected": case.in_loss("k1", True),
        "k3 in the loss, corrected": case.in_loss("k3", True),
        "k1 in the reward": case.in_reward("k1"),
    }
    for name, gradient_V in right.items():
        assert error(gradient_V, exact_V) < 1e-10, name
    # k1: the expectation of a score is 0.
    assert case.in_loss("k1", False).abs().max().item() < 1e-15
    # k3: E_pi[(1 - ref/pi) grad log pi] = -sum ref grad log pi, the gradient of the divergence the other way round. That
    # pulls to the same place, so it is a regulariser, and it is GRPO's.
    assert error(case.in_loss("k3", False), reversed_V) < 1e-10
    assert share(case.in_loss("k3", False), exact_V) > 0.1
    assert share(case.in_reward("k2"), exact_V) > 0.3
    assert share(case.in_reward("k3"), exact_V) > 0.3
    # Correcting k2, which was right, makes it wrong: k2's own mean is not the KL.
    assert share(case.in_loss("k2", True), exact_V) > 0.1


@pytest.mark.parametrize("seed", range(5))
def test_which_gradients_survive_stale_data(seed):
    """Sampled from an older policy: the ratio of the correction is an importance weight too. Plain k2 has none."""
    case = vocabulary(seed, staleness=0.5)
    exact_V = case.gradient(case.exact())
    assert error(case.in_loss("k1", True), exact_V) < 1e-10
    assert error(case.in_loss("k3", True), exact_V) < 1e-10
    assert share(case.in_loss("k2", False), exact_V) > 0.1
    assert share(case.in_loss("k3", False), case.gradient(case.reversed())) > 0.1


def test_near_the_reference():
    """Plain k3 becomes right (the two divergences agree to first order); k2 and k3 in the reward vanish beside the KL.

    The KL's gradient is of first order in the distance, theirs is of second: each ten times closer, ten times smaller a share.
    """
    shares: dict[str, list[float]] = {"k2": [], "k3": []}
    for distance in (1e-1, 1e-2, 1e-3, 1e-4):
        case = vocabulary(distance=distance)
        exact_V = case.gradient(case.exact())
        assert share(case.in_loss("k3", False), exact_V) < 2 * distance
        assert error(case.in_reward("k1"), exact_V) < 1e-15
        for name, found in shares.items():
            found.append((case.in_reward(name).norm() / exact_V.norm()).item())
    for found in shares.values():
        for farther, closer in pairwise(found):
            assert closer == pytest.approx(farther / 10, rel=0.15)
        assert found[-1] < 1e-3


@pytest.mark.parametrize("correct", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_at_the_reference_value_and_gradient_are_exactly_0(name, correct):
    """The corrected ones too: their gradient is ratio * k * grad log pi + ratio * grad k, and k is 0. k1's own slope is 1."""
    case = vocabulary(distance=0.0)
    assert ESTIMATORS[name](case.log_policy_V, case.log_ref_V).abs().max().item() == 0.0
    assert case.in_loss(name, correct).abs().max().item() < (1e-15 if name == "k1" else 1e-300)
    assert case.in_reward(name).abs().max().item() == 0.0
    assert case.gradient(case.exact()).abs().max().item() < 1e-15


@pytest.mark.parametrize("kind", ["k2", "k3", "k1 corrected", "k3 corrected", "k1 in the reward"])
def test_following_the_gradient_brings_the_policy_back(kind):
    """A step against each gradient that is allowed makes the exact KL smaller; many steps end at the reference."""
    case = vocabulary()
    before = case.exact().item()
    for step in range(400):
        name, _, place = kind.partition(" ")
        gradient_V = case.in_reward(name) if place == "in the reward" else case.in_loss(name, place == "corrected")
        moved_V = (case.logits_V - (1e-3 if step == 0 else 1.0) * gradient_V).detach()
        case = Vocabulary(moved_V.clone().requires_grad_(), case.ref_V, moved_V)
        if step == 0:
            assert case.exact().item() < before
    assert case.exact().item() < 1e-3 * before


def test_table_of_expected_gradients():
    """Relative errors against the gradient of KL(policy || reference), on-policy and sampled from an older policy."""
    lines = [f"{'estimator':<28}{'on-policy':>12}{'stale':>12}"]
    on_policy, stale = vocabulary(), vocabulary(staleness=0.5)
    found = {}
    for name in NAMES:
        for correct in (False, True):
            label = f"{name} in the loss{', corrected' if correct else ''}"
            errors = []
            for case in (on_policy, stale):
                exact_V = case.gradient(case.exact())
                errors.append(share(case.in_loss(name, correct), exact_V))
            found[label] = errors
            lines.append(f"{label:<28}{errors[0]:>12.1e}{errors[1]:>12.1e}")
    exact_V = on_policy.gradient(on_policy.exact())
    for name in NAMES:
        found[f"{name} in the reward"] = [share(on_policy.in_reward(name), exact_V)]
        lines.append(f"{name + ' in the reward':<28}{found[f'{name} in the reward'][0]:>12.1e}")
    print("\n" + "\n".join(lines))
    assert error(on_policy.in_loss("k3", False), exact_V) > 0.05
    right = {label for label, errors in found.items() if errors[0] < 1e-10}
    assert right == {"k2 in the loss", "k1 in the loss, corrected", "k3 in the loss, corrected", "k1 in the reward"}
    assert {label for label, errors in found.items() if len(errors) > 1 and errors[1] < 1e-10} == {
        "k1 in the loss, corrected",
        "k3 in the loss, corrected",
    }


# -- the same through the loss of the trainer ----------------------------------------------------------------------------


def every_outcome(case: Vocabulary, advantages_V: Tensor, *, stale: bool) -> tuple[TokenScores, MicroBatch]:
    """One row per outcome, weighted by its probability under the policy that sampled: the weighted sum is the expectation."""
    log_policy_V = case.log_policy_V
    count = len(log_policy_V)
    micro = MicroBatch(
        layout=lay_out([((0,), (outcome,)) for outcome in range(count)]),
        before=Selection.from_index(2 * np.arange(count), 2 * count),
        token_ids_M=torch.arange(count),
        row_M=torch.arange(count),
        loss_weights_M=case.log_old_V.exp(),
        advantages_M=advantages_V,
        sampling_logprobs_M=case.log_old_V,
        old_logprobs_M=case.log_old_V if stale else None,
        ref_logprobs_M=case.log_ref_V,
        old_values_M=None,
        returns_M=None,
        fresh_M=None,
        group_B=torch.zeros(count, dtype=torch.long),
        examples=tuple(range(count)),
        trained_M=np.arange(count),
    )
    return TokenScores(log_policy_V, torch.zeros_like(log_policy_V)), micro


@pytest.mark.parametrize(
    ("estimator", "kl_corrected", "stale"), [("k2", False, False), ("k1", True, False), ("k3", True, False), ("k1", True, True), ("k3", True, True)]
)  # fmt: skip
def test_token_loss_with_kl_in_the_loss_gives_the_gradient_of_the_kl(estimator, kl_corrected, stale):
    """No reward at all: what is left of the trainer's own loss is kl_coef times the exact gradient."""
    case = vocabulary(staleness=0.5 if stale else 0.0)
    algorithm = AlgorithmConfig(kl_coef=0.3, kl_estimator=estimator, kl_corrected=kl_corrected)
    scores, micro = every_outcome(case, torch.zeros(8, dtype=torch.float64), stale=stale)
    loss = token_loss(scores, micro, algorithm, kl_coef=0.7)  # the coefficient of the moment, not the recipe's
    found_V = case.gradient((loss.loss_M * micro.loss_weights_M).sum())
    assert error(found_V, 0.7 * case.gradient(case.exact())) < 1e-10


@pytest.mark.parametrize("region", ["none", "clip", "cispo"])
def test_token_loss_with_kl_in_the_reward_gives_the_gradient_of_the_kl(region):
    """Advantage -beta k1 and no KL in the loss, though reference log-probs are there: the same gradient, on-policy."""
    case = vocabulary()
    advantage = {"advantage": "leave_one_out", "kl_in": "completion_reward", "kl_estimator": "k1"}
    algorithm = AlgorithmConfig(kl_coef=0.3, region=region, **advantage)
    cost_V = 0.3 * k1(case.log_policy_V, case.log_ref_V).detach()
    scores, micro = every_outcome(case, -cost_V, stale=False)
    loss = token_loss(scores, micro, algorithm, kl_coef=0.3)
    assert loss.kl_loss_M is None
    found_V = case.gradient((loss.loss_M * micro.loss_weights_M).sum())
    assert error(found_V, 0.3 * case.gradient(case.exact())) < 1e-10


def test_refused_combinations_are_those_with_a_wrong_gradient():
    """What the recipe refuses is what the table shows to hold nothing: k1 plain in the loss, k2 and k3 in the reward."""
    for choices in (
        {"kl_estimator": "k1"},
        {"kl_estimator": "k2", "kl_in": "completion_reward"},
        {"kl_estimator": "k3", "kl_in": "completion_reward"},
    ):
        with pytest.raises(ValueError, match="kl_estimator"):
            AlgorithmConfig(kl_coef=0.1, advantage="leave_one_out", **choices)
    AlgorithmConfig(kl_coef=0.1, advantage="leave_one_out", kl_estimator="k1", kl_in="completion_reward")
