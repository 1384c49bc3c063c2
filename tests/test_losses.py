"""Ratio, clip and k3 per token: hand-computed values and gradients, extremes, and what k3 in the loss really does."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.algorithms.kl import k3
from cohort.algorithms.losses import LOG_RATIO_LIMIT, clip_shares, clipped_surrogate, ratio
from reference import token_loss as reference_token_loss


def double(*values: float, grad: bool = False) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


@pytest.mark.parametrize(
    ("rho", "advantage", "value", "gradient"),
    [
        # gradient is d loss / d log pi = -rho A where the token is free, 0 where the clip holds it.
        (1.5, 2.0, -1.2 * 2.0, 0.0),  # above, A > 0: clipped
        (0.5, 2.0, -0.5 * 2.0, -0.5 * 2.0),  # below, A > 0: free to come back
        (1.5, -2.0, 1.5 * 2.0, 1.5 * 2.0),  # above, A < 0: free to come back
        (0.5, -2.0, 0.8 * 2.0, 0.0),  # below, A < 0: clipped
        (1.1, 2.0, -2.2, -2.2),
        (0.9, -2.0, 1.8, 1.8),
        (1.0, 3.0, -3.0, -3.0),
        (1.5, 0.0, 0.0, 0.0),
    ],
)
def test_clip_on_each_side(rho, advantage, value, gradient):
    policy_M, old_M = double(math.log(rho) - 1.0, grad=True), double(-1.0)
    loss_M = clipped_surrogate(ratio(policy_M, old_M), double(advantage), 0.2, 0.2)
    loss_M.sum().backward()
    assert loss_M.item() == pytest.approx(value, abs=1e-14)
    assert policy_M.grad.item() == pytest.approx(gradient, abs=1e-14)


def test_asymmetric_clip_and_the_counts_of_what_it_took():
    """DAPO's 0.2 / 0.28: 1.25 is still free above, 0.75 is not below. Counts are of tokens that lost their gradient."""
    ratio_M = double(1.25, 1.30, 1.30, 0.75, 0.75, 0.85)
    advantages_M = double(1.0, 1.0, -1.0, -1.0, 1.0, -1.0)
    assert clipped_surrogate(ratio_M, advantages_M, 0.2, 0.28).tolist() == pytest.approx([-1.25, -1.28, 1.30, 0.8, -0.75, 0.85])
    below, above = clip_shares(ratio_M, advantages_M, 0.2, 0.28)
    assert (below.item(), above.item()) == (1, 1)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(-6, -0.01), st.floats(-6, -0.01), st.floats(-6, -0.01), st.floats(-3, 3)), min_size=1, max_size=8
    ),
    st.sampled_from([0.0, 0.1, 0.2]),
    st.sampled_from([0.1, 0.2, 0.28]),
    st.sampled_from([0.0, 0.04, 1.0]),
)
def test_value_and_gradient_against_the_slow_reference(tokens, clip_low, clip_high, kl_coef):
    policy, old, ref, advantages = (double(*column) for column in zip(*tokens, strict=True))
    ours, theirs = policy.clone().requires_grad_(), policy.clone().requires_grad_()
    loss_M = clipped_surrogate(ratio(ours, old), advantages, clip_low, clip_high) + kl_coef * k3(ours, ref)
    loss_M.sum().backward()
    expected = [
        reference_token_loss(
            theirs[place], old[place].item(), ref[place].item(), advantages[place].item(), clip_low, clip_high, kl_coef
        )
        for place in range(len(tokens))
    ]
    (sum(expected) + 0.0 * theirs.sum()).backward()
    assert loss_M.tolist() == pytest.approx([value.item() for value in expected], rel=1e-12, abs=1e-12)
    assert ours.grad.tolist() == pytest.approx(theirs.grad.tolist(), rel=1e-12, abs=1e-12)


def test_on_policy_the_ratio_is_exactly_one_and_the_loss_zero_with_a_gradient():
    """A centred group and sequence mean: value 0 by construction, gradient minus the advantage. Not a broken run."""
    policy_M = double(-0.3, -2.0, -1.1, -0.7, grad=True)
    ratio_M = ratio(policy_M, policy_M.detach())
    assert ratio_M.tolist() == [1.0] * 4
    advantages_M = double(1.0, -1.0, 1.0, -1.0)
    loss = (clipped_surrogate(ratio_M, advantages_M, 0.2, 0.2) * double(0.25, 0.25, 0.25, 0.25)).sum()
    loss.backward()
    assert loss.item() == 0.0
    assert policy_M.grad.tolist() == [-0.25, 0.25, -0.25, 0.25]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("log_ratio", [-1e4, -200.0, -25.0, 25.0, 200.0, 1e4])
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_huge_log_ratios_stay_finite(dtype, log_ratio, advantage):
    """In value and in gradient, for the surrogate and for k3, also when squared in a norm."""
    policy_M = torch.tensor([log_ratio], dtype=dtype, requires_grad=True)
    old_M = torch.zeros(1, dtype=dtype)
    loss_M = clipped_surrogate(ratio(policy_M, old_M), torch.tensor([advantage], dtype=dtype), 0.2, 0.2) + k3(policy_M, old_M)
    loss_M.sum().backward()
    assert torch.isfinite(loss_M).all()
    assert torch.isfinite(policy_M.grad.square()).all()
    assert ratio(policy_M, old_M).item() <= math.exp(LOG_RATIO_LIMIT) * (1 + 1e-6)


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
def test_k3_is_never_negative(policy, ref):
    assert k3(double(policy), double(ref)).item() >= 0.0


def test_k3_has_the_right_sign():
    """A step against its gradient makes the divergence of the sampled token smaller, from either side."""
    for start in (-0.5, -3.0):
        policy_M, ref_M = double(start, grad=True), double(-1.5)
        before = k3(policy_M, ref_M)
        before.backward()
        after = k3(policy_M.detach() - 0.05 * policy_M.grad, ref_M)
        assert after.item() < before.item()


def exact_kl(logits_V: torch.Tensor, ref_V: torch.Tensor) -> torch.Tensor:
    policy_V = torch.log_softmax(logits_V, 0)
    return (policy_V.exp() * (policy_V - torch.log_softmax(ref_V, 0))).sum()


def test_what_k3_in_the_loss_gives_on_a_vocabulary_of_eight():
    """Averaged over all outcomes the *value* of k3 is KL(policy || ref). Its *gradient* is not that of this KL:

    E_pi[(1 - ref/pi) grad log pi] = -sum ref grad log pi = grad KL(ref || policy), the divergence the other way round.
    That pulls to the same place, so it is a regulariser, and it is GRPO's; the two agree to first order near ref = policy.
    """
    generator = torch.Generator().manual_seed(3)
    logits_V = torch.randn(8, generator=generator, dtype=torch.float64, requires_grad=True)
    ref_V = torch.randn(8, generator=generator, dtype=torch.float64)
    policy_V, reference_V = torch.log_softmax(logits_V, 0), torch.log_softmax(ref_V, 0)
    k3_V = k3(policy_V, reference_V)
    probabilities_V = policy_V.exp().detach()
    assert (probabilities_V * k3_V).sum().item() == pytest.approx(exact_kl(logits_V, ref_V).item(), abs=1e-14)

    (in_loss,) = torch.autograd.grad((probabilities_V * k3_V).sum(), logits_V, retain_graph=True)
    (forward,) = torch.autograd.grad(exact_kl(logits_V, ref_V), logits_V)
    (backward,) = torch.autograd.grad((reference_V.exp() * (reference_V - torch.log_softmax(logits_V, 0))).sum(), logits_V)
    assert (in_loss - backward).abs().max().item() < 1e-14
    assert (in_loss - forward).abs().max().item() > 0.05
    # The importance ratio with its gradient makes it exact: the correction this objective does not claim to have.
    corrected_V = torch.exp(policy_V - policy_V.detach()) * k3_V
    (corrected,) = torch.autograd.grad((probabilities_V * corrected_V).sum(), logits_V)
    assert (corrected - forward).abs().max().item() < 1e-14

    close_V = (ref_V + 1e-4 * torch.randn(8, generator=generator, dtype=torch.float64)).requires_grad_()
    close_policy_V = torch.log_softmax(close_V, 0)
    (near,) = torch.autograd.grad((close_policy_V.exp().detach() * k3(close_policy_V, reference_V)).sum(), close_V)
    (near_exact,) = torch.autograd.grad(exact_kl(close_V, ref_V), close_V)
    assert (near - near_exact).norm().item() < 1e-3 * near_exact.norm().item()


def test_a_larger_coefficient_ends_with_a_smaller_divergence():
    """Ten steps of expected policy gradient for one token, with more and more KL: the divergence falls each time."""
    ref_V = torch.zeros(8, dtype=torch.float64)
    reward_V = torch.zeros(8, dtype=torch.float64)
    reward_V[3] = 1.0
    divergences = []
    for kl_coef in (0.0, 0.04, 0.4, 4.0):
        logits_V = ref_V.clone().requires_grad_()
        for _ in range(10):
            policy_V = torch.log_softmax(logits_V, 0)
            probabilities_V = policy_V.exp().detach()
            advantages_V = reward_V - (probabilities_V * reward_V).sum()
            loss_V = clipped_surrogate(ratio(policy_V, policy_V.detach()), advantages_V, 0.2, 0.2)
            loss = (probabilities_V * (loss_V + kl_coef * k3(policy_V, torch.log_softmax(ref_V, 0)))).sum()
            (gradient,) = torch.autograd.grad(loss, logits_V)
            logits_V = (logits_V - 0.5 * gradient).detach().requires_grad_()
        divergences.append(exact_kl(logits_V, ref_V).item())
    assert divergences == sorted(divergences, reverse=True)
    assert divergences[-1] < 0.2 * divergences[0]
