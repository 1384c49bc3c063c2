"""Trust regions, preferences and engine weights per token: hand-computed values and gradients, slow twins, extremes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from cohort.algorithms.named import NAMED
from cohort.algorithms.regions import (
    LOG_RATIO_LIMIT,
    Surrogate,
    Tokens,
    clipped_surrogate,
    compute_mismatch_weights,
    dpo,
    exp_limited,
    k3,
    ratio,
    sum_over_rows,
)
from cohort.model.packing import pack
from cohort.model.policy import TokenScores
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.training.objective import token_loss
from conftest import ragged_examples, tiny_policy

EVERY = sorted(name for name, choice in NAMED["region"].items() if not choice.traits.preference)
ESTIMATORS = {name: choice.function for name, choice in NAMED["kl"].items()}
LIMITS = {
    "clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0, "ratio_cap": 2.0,
    "soft_up": 1.0, "soft_down": 1.05, "divergence_limit": 0.15, "divergence_cap": 0.0,
}  # fmt: skip
OTHER_LIMITS = {
    "clip_low": 0.0, "clip_high": 0.5, "dual_clip": 1.1, "ratio_cap": 0.7,
    "soft_up": 3.0, "soft_down": 0.4, "divergence_limit": 0.03, "divergence_cap": 1.3,
}  # fmt: skip


def surrogate(name: str, policy_M, old_M, advantages_M, row_M, num_rows: int, limits=LIMITS) -> Surrogate:
    """What a region says of tokens that the engine sampled with the old log-probs."""
    region = NAMED["region"][name]
    tokens = Tokens(policy_M, old_M, old_M, advantages_M, row_M, num_rows)
    return region.call({word: value for word, value in limits.items() if word in region.parameters}, tokens=tokens)


def double(*values: float, grad: bool = False) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def one_row(
    name: str, log_ratios: list[float], advantage: float, limits: dict[str, float] = LIMITS
) -> tuple[Surrogate, torch.Tensor]:
    """A completion whose tokens have these log ratios to -1, and the gradient of its summed loss by the log-probs."""
    policy_M = (double(*log_ratios) - 1.0).requires_grad_()
    old_M, row_M = torch.full_like(policy_M, -1.0).detach(), torch.zeros(len(log_ratios), dtype=torch.long)
    found = surrogate(name, policy_M, old_M, torch.full_like(old_M, advantage), row_M, 1, limits)
    (gradient_M,) = torch.autograd.grad(found.loss_M.sum(), policy_M)
    return found, gradient_M


# -- clip ----------------------------------------------------------------------------------------------------------------

FOUR_SIDES = [
    # gradient is d loss / d log pi = -rho A where the token is free, 0 where the clip holds it.
    (1.5, 2.0, -1.2 * 2.0, 0.0),  # above, A > 0: clipped
    (0.5, 2.0, -0.5 * 2.0, -0.5 * 2.0),  # below, A > 0: free to come back
    (1.5, -2.0, 1.5 * 2.0, 1.5 * 2.0),  # above, A < 0: free to come back
    (0.5, -2.0, 0.8 * 2.0, 0.0),  # below, A < 0: clipped
    (1.1, 2.0, -2.2, -2.2),
    (0.9, -2.0, 1.8, 1.8),
    (1.0, 3.0, -3.0, -3.0),
    (1.5, 0.0, 0.0, 0.0),
]


@pytest.mark.parametrize(("rho", "advantage", "value", "gradient"), FOUR_SIDES)
def test_clip_on_each_side(rho, advantage, value, gradient):
    policy_M, old_M = double(math.log(rho) - 1.0, grad=True), double(-1.0)
    loss_M = clipped_surrogate(ratio(policy_M, old_M), double(advantage), 0.2, 0.2)
    loss_M.sum().backward()
    assert loss_M.item() == pytest.approx(value, abs=1e-14)
    assert policy_M.grad.item() == pytest.approx(gradient, abs=1e-14)


@pytest.mark.parametrize("name", ["clip", "sequence", "sequence_product"])
@pytest.mark.parametrize(("rho", "advantage", "value", "gradient"), FOUR_SIDES)
def test_the_clip_of_a_single_token_is_the_same_in_every_clipping_region(name, rho, advantage, value, gradient):
    """A completion of one token is its own mean and its own product. The tokens held are counted on their side."""
    found, gradient_M = one_row(name, [math.log(rho)], advantage, {"clip_low": 0.2, "clip_high": 0.2})
    assert found.loss_M.item() == pytest.approx(value, abs=1e-14)
    assert gradient_M.item() == pytest.approx(gradient, abs=1e-14)
    assert found.ratio_M.item() == pytest.approx(rho, abs=1e-15)
    assert found.below_M.item() == (rho < 0.8 and advantage < 0)
    assert found.above_M.item() == (rho > 1.2 and advantage > 0)


def test_asymmetric_clip_and_the_tokens_it_took():
    """DAPO's 0.2 / 0.28: 1.25 is still free above, 0.75 is not below. Counted are tokens that lost their gradient."""
    ratio_M = double(1.25, 1.30, 1.30, 0.75, 0.75, 0.85)
    advantages_M = double(1.0, 1.0, -1.0, -1.0, 1.0, -1.0)
    losses = [-1.25, -1.28, 1.30, 0.8, -0.75, 0.85]
    assert clipped_surrogate(ratio_M, advantages_M, 0.2, 0.28).tolist() == pytest.approx(losses)
    found = surrogate("clip", ratio_M.log(), torch.zeros_like(ratio_M), advantages_M, torch.arange(6), 6, LIMITS)
    assert found.loss_M.tolist() == pytest.approx(losses)
    assert found.below_M.tolist() == [False, False, False, True, False, False]
    assert found.above_M.tolist() == [False, True, False, False, False, False]


def test_at_the_very_edge_a_token_is_still_free():
    """A ratio of exactly 1 + high or 1 - low has not passed it: value and gradient are rho A, and nothing is counted."""
    for rho, advantage in ((1.25, 1.0), (0.75, -1.0)):
        ratio_M = double(rho, grad=True)
        loss_M = clipped_surrogate(ratio_M, double(advantage), 0.25, 0.25)
        loss_M.backward()
        assert loss_M.item() == -rho * advantage
        assert ratio_M.grad.item() == -advantage
    # No room at all: on-policy, with both limits 0, the first update is still the plain policy gradient.
    for name in ("clip", "dual_clip", "sequence", "sequence_product"):
        for advantage in (1.0, -1.0):
            found, gradient_M = one_row(name, [0.0], advantage, {"clip_low": 0.0, "clip_high": 0.0})
            assert gradient_M.item() == -advantage
            assert not found.below_M.any()
            assert not found.above_M.any()


# -- the other regions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rho", "advantage", "value", "gradient", "below", "above"),
    [
        (2.0, -2.0, 4.0, 4.0, False, False),  # between 1 + high and c: as clip, free to come back
        (5.0, -2.0, 6.0, 0.0, False, True),  # beyond c: the loss stops at c |A|
        (0.5, -2.0, 1.6, 0.0, True, False),  # below: held by the first clip
        (5.0, 2.0, -2.56, 0.0, False, True),  # A > 0: the second clip has no say
        (0.5, 2.0, -1.0, -1.0, False, False),
    ],
)
def test_dual_clip_by_hand(rho, advantage, value, gradient, below, above):
    found, gradient_M = one_row("dual_clip", [math.log(rho)], advantage)
    assert found.loss_M.item() == pytest.approx(value, abs=1e-14)
    assert gradient_M.item() == pytest.approx(gradient, abs=1e-14)
    assert (found.below_M.item(), found.above_M.item()) == (below, above)


def test_sequence_product_by_hand():
    """Log ratios .1, .2, -.25: the product is exp(.05). Summed over the three tokens, each token's gradient is 3 rho A."""
    found, gradient_M = one_row("sequence_product", [0.1, 0.2, -0.25], 2.0)
    rho = math.exp(0.05)
    assert found.ratio_M.tolist() == pytest.approx([rho] * 3, abs=1e-15)
    assert found.loss_M.tolist() == pytest.approx([-2 * rho] * 3, abs=1e-14)
    assert gradient_M.tolist() == pytest.approx([-3 * 2 * rho] * 3, abs=1e-14)
    # .1 + .2 = .3 is beyond log 1.28: the whole completion is held, also its second token, whose own ratio is inside.
    held, gradient_M = one_row("sequence_product", [0.2, 0.1], 2.0)
    assert held.loss_M.tolist() == pytest.approx([-2.56] * 2, abs=1e-14)
    assert gradient_M.tolist() == [0.0, 0.0]
    assert held.above_M.tolist() == [True, True]


def test_gspo_by_hand_and_its_gradient_flows_through_the_mean():
    """s = exp(mean of .1, .2, -.06) = exp(.08). Under sequence_mean weights each token receives -s A / |o|."""
    found, gradient_M = one_row("sequence", [0.1, 0.2, -0.06], 2.0)
    s = math.exp(0.08)
    assert found.ratio_M.tolist() == pytest.approx([s] * 3, abs=1e-15)
    assert found.loss_M.tolist() == pytest.approx([-2 * s] * 3, abs=1e-14)
    assert (gradient_M / 3).tolist() == pytest.approx([-2 * s / 3] * 3, abs=1e-14)
    held, gradient_M = one_row("sequence", [0.3, 0.3, 0.3], 2.0)
    assert held.loss_M.tolist() == pytest.approx([-2.56] * 3, abs=1e-14)
    assert gradient_M.tolist() == [0.0] * 3


def test_sequence_ratios_do_not_mix_completions():
    """Two completions, interleaved: .1 and .3 (mean .2), -.2 (alone). The numbers of one are blind to the other."""
    policy_M = double(0.1, -0.2, 0.3)
    row_M = torch.tensor([1, 0, 1])
    zeros_M, ones_M = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    means_M = surrogate("sequence", policy_M, zeros_M, ones_M, row_M, 2, LIMITS).ratio_M.log()
    sums_M = surrogate("sequence_product", policy_M, zeros_M, ones_M, row_M, 2, LIMITS).ratio_M.log()
    assert means_M.tolist() == pytest.approx([0.2, -0.2, 0.2], abs=1e-15)
    assert sums_M.tolist() == pytest.approx([0.4, -0.2, 0.4], abs=1e-15)
    assert sum_over_rows(policy_M, row_M, 2).tolist() == pytest.approx([0.4, -0.2, 0.4], abs=1e-15)


@pytest.mark.parametrize(
    ("rho", "advantage", "weight"), [(0.5, 2.0, 0.5), (1.5, 2.0, 1.5), (4.0, 2.0, 2.0), (4.0, -2.0, 2.0), (0.1, -2.0, 0.1)]
)
def test_cispo_by_hand(rho, advantage, weight):
    """-min(rho, 2) A log pi; the gradient is -min(rho, 2) A for every token: capped, never dropped."""
    found, gradient_M = one_row("cispo", [math.log(rho)], advantage)
    assert found.loss_M.item() == pytest.approx(-weight * advantage * (math.log(rho) - 1.0), abs=1e-14)
    assert gradient_M.item() == pytest.approx(-weight * advantage, abs=1e-14)
    assert found.above_M.item() == (rho > 2.0)
    assert not found.below_M.item()


@pytest.mark.parametrize(
    ("rho", "advantage", "value", "gradient"),
    [
        # tau is 1 for A > 0: (4 / 1) sigmoid(rho - 1), with sigmoid(0.5) = 0.6225 and sigmoid(-0.5) = 0.3775.
        (1.0, 2.0, -4.0, -2.0),
        (1.5, 2.0, -8 * 0.6224593312018546, -8 * 0.6224593312018546 * 0.3775406687981454 * 1.5),
        (0.5, 2.0, -8 * 0.3775406687981454, -8 * 0.6224593312018546 * 0.3775406687981454 * 0.5),
        # tau is 1.05 for A < 0.
        (1.0, -2.0, 4.0 / 1.05, 2.0),
        (2.0, -2.0, 8 / 1.05 / (1 + math.exp(-1.05)), 8 * 2 * math.exp(-1.05) / (1 + math.exp(-1.05)) ** 2),
        (1.5, 0.0, 0.0, 0.0),
    ],
)
def test_soft_by_hand(rho, advantage, value, gradient):
    """-(4 / tau) sigmoid(tau (rho - 1)) A; the gradient by log pi is -4 sigmoid' rho A: that of rho A at rho 1, and less on both sides."""
    found, gradient_M = one_row("soft", [math.log(rho)], advantage)
    assert found.loss_M.item() == pytest.approx(value, abs=1e-14)
    assert gradient_M.item() == pytest.approx(gradient, abs=1e-14)
    assert found.ratio_M.item() == pytest.approx(rho, abs=1e-15)
    assert not found.below_M.any()
    assert not found.above_M.any()


def test_soft_fades_where_the_clip_cuts():
    """The share of rho A that is left: all at 1, hardly any far above, less with a larger tau, and no step in between."""
    shares = [-one_row("soft", [math.log(rho)], 1.0)[1].item() / rho for rho in (1.0, 1.2, 2.0, 4.0, 8.0, 16.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1.0
    assert shares[1] == pytest.approx(0.99, abs=1e-3)
    assert 0 < shares[-1] < 1e-5
    sooner = -one_row("soft", [math.log(4.0)], 1.0, LIMITS | {"soft_up": 2.0})[1].item() / 4
    assert sooner < shares[3] / 5


@pytest.mark.parametrize(
    ("policy", "sampling", "advantage", "held"),
    [
        (0.70, 0.50, 1.0, True),  # 0.2 up, and pushed further up
        (0.70, 0.50, -1.0, False),  # pushed back
        (0.30, 0.50, -1.0, True),  # 0.2 down, and pushed further down
        (0.30, 0.50, 1.0, False),
        (0.64, 0.50, 1.0, False),  # inside the limit
        (0.36, 0.50, -1.0, False),
        (0.09, 0.01, 1.0, False),  # nine times as likely, and hardly more probable: a clip would have held it
        (0.01, 0.09, -1.0, False),
        (0.70, 0.50, 0.0, False),
    ],
)
def test_divergence_by_hand(policy, sampling, advantage, held):
    """-(pi / mu) A, and 0 where the probability has moved by more than 0.15 and is pushed on. The old log-probs are not read."""
    policy_M, sampling_M = double(math.log(policy), grad=True), double(math.log(sampling))
    told = {"divergence_limit": 0.15, "divergence_cap": 0.0}
    tokens = Tokens(policy_M, double(float("nan")), sampling_M, double(advantage), torch.zeros(1, dtype=torch.long), 1)
    found = NAMED["region"]["divergence"].call(told, tokens=tokens)
    found.loss_M.sum().backward()
    expected = 0.0 if held else -policy / sampling * advantage
    assert found.loss_M.item() == pytest.approx(expected, abs=1e-14)
    assert policy_M.grad.item() == pytest.approx(expected, abs=1e-14)
    assert found.ratio_M.item() == pytest.approx(policy / sampling, rel=1e-14)
    assert (found.below_M.item(), found.above_M.item()) == (held and advantage < 0, held and advantage > 0)


def test_the_cap_of_divergence_cuts_the_weight_and_drops_no_token():
    """Nine times as likely: a weight of 9, or of 4 with a cap of 4, in value and gradient; below the cap nothing changes."""
    for rho, cap, weight in ((9.0, 0.0, 9.0), (9.0, 4.0, 4.0), (2.0, 4.0, 2.0)):
        policy_M = (double(math.log(0.01)) + math.log(rho)).requires_grad_()
        tokens = Tokens(policy_M, policy_M, double(math.log(0.01)), double(-2.0), torch.zeros(1, dtype=torch.long), 1)
        told = {"divergence_limit": 0.15, "divergence_cap": cap}
        found = NAMED["region"]["divergence"].call(told, tokens=tokens)
        found.loss_M.sum().backward()
        assert found.loss_M.item() == pytest.approx(2 * weight, rel=1e-14)
        assert policy_M.grad.item() == pytest.approx(2 * weight, rel=1e-14)
        assert found.ratio_M.item() == pytest.approx(rho, rel=1e-14)


def test_divergence_measures_from_the_engine_in_ratio_and_limit():
    """Through token_loss, with engine and old log-probs apart: the engine's count in the ratio and in what is held."""
    policy = tiny_policy(spread=2.0)
    examples = ragged_examples(policy, off_policy=0.3, mismatch=0.6)
    options = {"aggregation": "constant", "max_completion_tokens": 8, "skip_zero_advantage": False}
    (micro,) = pack(examples, micro_batch_tokens=10_000, **options).micro_batches
    logprobs_M = policy.compute_logprobs(micro).logprobs_M.detach().requires_grad_()
    algorithm = AlgorithmConfig(name="dppo", divergence_limit=0.01)
    found = token_loss(TokenScores(logprobs_M, torch.zeros_like(logprobs_M)), micro, algorithm, 0.0)
    batch = {"row": micro.row_M, "advantages": micro.advantages_M, "old": micro.old_logprobs_M}
    engine = batch | {"sampling": micro.sampling_logprobs_M}
    theirs = logprobs_M.detach().clone().requires_grad_()
    told = {"region": "divergence", "divergence_limit": 0.01}
    compare(found.loss_M, logprobs_M, reference_losses(theirs, engine, **told), theirs)
    held_M = found.surrogate.below_M | found.surrogate.above_M
    assert 0 < held_M.sum() < len(held_M)
    trainer = reference_losses(theirs, batch, **told)
    assert max(abs(a - b.item()) for a, b in zip(found.loss_M.tolist(), trainer, strict=True)) > 0.01


def test_none_is_the_plain_policy_gradient_wherever_the_data_came_from():
    found, gradient_M = one_row("none", [3.0, -3.0, 0.0], -2.0)
    assert found.loss_M.tolist() == [2.0 * 2.0, 2.0 * -4.0, 2.0 * -1.0]
    assert gradient_M.tolist() == [2.0] * 3
    assert found.ratio_M.tolist() == [1.0] * 3


@pytest.mark.parametrize("name", EVERY)
def test_on_policy_the_ratio_is_exactly_one_and_the_coefficient_is_the_advantage(name):
    """A centred group: where the trait says so the loss is 0 by construction and its gradient is not. Not a broken run."""
    policy_M = double(-0.3, -2.0, -1.1, -0.7, grad=True)
    advantages_M = double(1.0, -1.0, 1.0, -1.0)
    found = surrogate(name, policy_M, policy_M.detach(), advantages_M, torch.arange(4), 4, LIMITS)
    assert found.ratio_M.tolist() == [1.0] * 4
    loss = (found.loss_M * 0.25).sum()
    loss.backward()
    traits = NAMED["region"][name].traits
    assert (loss.item() == 0.0) == traits.zero_on_policy
    assert (found.loss_M.tolist() == (-advantages_M).tolist()) == traits.zero_on_policy
    assert policy_M.grad.tolist() == pytest.approx([-0.25, 0.25, -0.25, 0.25], abs=1e-16)
    # Also where a completion of several tokens has one ratio: its three losses share it, and push each token three times.
    together, gradient_M = one_row(name, [0.0] * 3, 2.0)
    assert together.ratio_M.tolist() == [1.0] * 3
    assert gradient_M.tolist() == pytest.approx([-6.0 if name == "sequence_product" else -2.0] * 3, abs=1e-15)


# -- all regions against the reference -----------------------------------------------------------------------------------


def reference_losses(policy_M: torch.Tensor, batch: dict[str, torch.Tensor], **choices: Any) -> list[torch.Tensor]:
    """The slow twin on the same flat tokens, completion by completion."""
    rows = batch["row"].tolist()
    losses: list[Any] = [None] * len(rows)
    for row in sorted(set(rows)):
        places = [place for place, own in enumerate(rows) if own == row]
        tokens = [
            reference.Token(
                logprob=policy_M[place],
                advantage=float(batch["advantages"][place]),
                old=float(batch["old"][place]) if "old" in batch else None,
                ref=float(batch["ref"][place]) if "ref" in batch else None,
                sampling=float(batch["sampling"][place]) if "sampling" in batch else None,
            )
            for place in places
        ]
        for place, loss in zip(places, reference.completion_losses(tokens, reference.Choices(**choices)), strict=True):
            losses[place] = loss
    return losses


def compare(ours_M: torch.Tensor, policy_M: torch.Tensor, losses: list[torch.Tensor], theirs_M: torch.Tensor) -> None:
    """Values and gradients of a weighted sum, with a different weight per token so that no error can cancel."""
    weights_M = 1.0 + torch.arange(len(losses), dtype=torch.float64) / 7
    (gradient_M,) = torch.autograd.grad((ours_M * weights_M).sum(), policy_M)
    total = sum(loss * weight for loss, weight in zip(losses, weights_M.tolist(), strict=True)) + 0.0 * theirs_M.sum()
    (expected_M,) = torch.autograd.grad(total, theirs_M)
    assert ours_M.tolist() == pytest.approx([loss.item() for loss in losses], rel=1e-12, abs=1e-12)
    assert gradient_M.tolist() == pytest.approx(expected_M.tolist(), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("on_policy", [False, True])
@pytest.mark.parametrize("limits", [LIMITS, OTHER_LIMITS], ids=["usual", "other"])
@pytest.mark.parametrize("name", EVERY)
def test_value_and_gradient_of_every_region_against_the_slow_reference(name, limits, on_policy):
    generator = torch.Generator().manual_seed(7)
    for spread in (0.05, 0.5, 2.0):
        logprobs_M = -2.0 + spread * torch.randn(40, generator=generator, dtype=torch.float64)
        row_M = torch.randint(0, 9, (40,), generator=generator)
        row_M = torch.unique(row_M, return_inverse=True)[1]
        batch = {"row": row_M, "advantages": torch.randn(40, generator=generator, dtype=torch.float64)}
        if not on_policy:
            batch["old"] = -2.0 + spread * torch.randn(40, generator=generator, dtype=torch.float64)
        ours, theirs = logprobs_M.clone().requires_grad_(), logprobs_M.clone().requires_grad_()
        old_M = ours.detach() if on_policy else batch["old"]
        found = surrogate(name, ours, old_M, batch["advantages"], row_M, int(row_M.max()) + 1, limits)
        compare(found.loss_M, ours, reference_losses(theirs, batch, region=name, **limits), theirs)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(-6, -0.01), st.floats(-6, -0.01), st.floats(-6, -0.01), st.floats(-3, 3), st.integers(0, 2)),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from(EVERY),
    st.sampled_from([0.0, 0.1, 0.2]),
    st.sampled_from([0.1, 0.2, 0.28]),
    st.sampled_from([0.0, 0.04, 1.0]),
    st.sampled_from(sorted(ESTIMATORS)),
)
def test_any_tokens_against_the_slow_reference(tokens, name, clip_low, clip_high, kl_coef, estimator):
    policy, old, ref, advantages = (double(*column) for column in list(zip(*tokens, strict=True))[:4])
    row_M = torch.tensor([row for *_, row in tokens])
    batch = {"row": row_M, "advantages": advantages, "old": old, "ref": ref}
    ours, theirs = policy.clone().requires_grad_(), policy.clone().requires_grad_()
    limits = LIMITS | {"clip_low": clip_low, "clip_high": clip_high}
    loss_M = surrogate(name, ours, old, advantages, row_M, 3, limits).loss_M + kl_coef * ESTIMATORS[estimator](ours, ref)
    choices = {"region": name, "kl_coef": kl_coef, "kl_estimator": estimator, **limits}
    compare(loss_M, ours, reference_losses(theirs, batch, **choices), theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("log_ratio", [-1e4, -200.0, -25.0, 25.0, 200.0, 1e4])
@pytest.mark.parametrize("advantage", [2.0, -2.0])
@pytest.mark.parametrize("name", EVERY)
def test_huge_log_ratios_stay_finite(name, dtype, log_ratio, advantage):
    """In value and in gradient, for every region and estimator, also when squared in a norm."""
    policy_M = torch.tensor([log_ratio] * 3, dtype=dtype, requires_grad=True)
    old_M, row_M = torch.zeros(3, dtype=dtype), torch.tensor([0, 0, 1])
    loss_M = surrogate(name, policy_M, old_M, torch.full((3,), advantage, dtype=dtype), row_M, 2, LIMITS).loss_M
    for estimator in ESTIMATORS.values():
        loss_M = loss_M + estimator(policy_M, old_M)
    loss_M.sum().backward()
    assert torch.isfinite(loss_M).all()
    assert torch.isfinite(policy_M.grad.square()).all()
    assert ratio(policy_M, old_M).max().item() <= math.exp(LOG_RATIO_LIMIT) * (1 + 1e-6)
    assert torch.isfinite(exp_limited(policy_M)).all()


# -- preferences ---------------------------------------------------------------------------------------------------------


def test_dpo_by_hand():
    """Pair 0: chosen gained .3 over two tokens, rejected lost .1: margin .1 * .4. Pair 1: the other way round.

    The loss is log(1 + exp(-margin)); its gradient is -beta sigmoid(-margin) on chosen tokens, + on rejected ones.
    """
    policy_M = double(-1.0, -1.1, -2.1, -3.0, -0.5, grad=True)
    ref_M = double(-1.2, -1.2, -2.0, -2.0, -1.5)
    signs_M, pair_M, beta = double(1, 1, -1, 1, -1), torch.tensor([0, 0, 0, 1, 1]), 0.1
    loss_M, margin_M = dpo(policy_M, ref_M, signs_M, pair_M, beta)
    margins = [0.1 * (0.3 + 0.1), 0.1 * (-1.0 - 1.0)]
    assert margin_M.tolist() == pytest.approx([margins[0]] * 3 + [margins[1]] * 2, abs=1e-15)
    losses = [math.log(1 + math.exp(-margin)) for margin in margins]
    assert loss_M.tolist() == pytest.approx([losses[0]] * 3 + [losses[1]] * 2, abs=1e-15)
    # prompt_mean weights: one over (pairs times the tokens of the pair).
    (loss_M * double(1 / 6, 1 / 6, 1 / 6, 1 / 4, 1 / 4)).sum().backward()
    pulls = [beta / (1 + math.exp(margin)) / 2 for margin in margins]
    assert policy_M.grad.tolist() == pytest.approx([-pulls[0], -pulls[0], pulls[0], -pulls[1], pulls[1]], abs=1e-15)


def test_dpo_at_the_reference_is_log_2_with_a_gradient_of_half_beta():
    policy_M = double(-1.0, -2.0, -0.3, grad=True)
    loss_M, margin_M = dpo(policy_M, policy_M.detach(), double(1, 1, -1), torch.zeros(3, dtype=torch.long), 0.5)
    assert margin_M.tolist() == [0.0] * 3
    assert loss_M.tolist() == pytest.approx([math.log(2)] * 3, abs=1e-15)
    (loss_M.sum() / 3).backward()
    assert policy_M.grad.tolist() == pytest.approx([-0.25, -0.25, 0.25], abs=1e-15)


def test_dpo_against_the_slow_reference():
    generator = torch.Generator().manual_seed(2)
    for beta in (0.1, 1.0):
        start_M = torch.randn(24, generator=generator, dtype=torch.float64) - 2
        ref_M = torch.randn(24, generator=generator, dtype=torch.float64) - 2
        pair_M, signs_M = torch.arange(24) // 6, torch.where(torch.arange(24) % 6 < 4, 1.0, -1.0).double()
        ours, theirs = start_M.clone().requires_grad_(), start_M.clone().requires_grad_()
        loss_M, _ = dpo(ours, ref_M, signs_M, pair_M, beta)
        (loss_M / 24).sum().backward()
        losses = []
        for pair in range(4):
            tokens = [reference.Token(theirs[place], 0.0, ref=float(ref_M[place])) for place in range(6 * pair, 6 * pair + 6)]
            losses.append(reference.pair_loss(tokens[:4], tokens[4:], beta))
        expected = sum(losses) / 4
        expected.backward()
        assert (loss_M.sum() / 24).item() == pytest.approx(expected.item(), abs=1e-13)
        assert ours.grad.tolist() == pytest.approx(theirs.grad.tolist(), abs=1e-13)


@pytest.mark.parametrize("gap", [-1e4, 1e4])
def test_dpo_stays_finite_however_wrong_the_preference(gap):
    policy_M = torch.tensor([gap, 0.0], requires_grad=True)
    loss_M, _ = dpo(policy_M, torch.zeros(2), torch.tensor([1.0, -1.0]), torch.zeros(2, dtype=torch.long), 0.1)
    (loss_M.sum() / 2).backward()
    assert loss_M.tolist() == pytest.approx([max(0.0, -0.1 * gap)] * 2)
    assert policy_M.grad.tolist() == pytest.approx([-0.1, 0.1] if gap < 0 else [0.0, 0.0])


def test_pairs_stay_in_one_micro_batch_and_their_loss_is_that_of_the_pair():
    """Through pack and token_loss, with a budget for one row: every micro-batch is a whole pair, of one loss and margin."""
    policy = tiny_policy()
    examples = ragged_examples(policy, pairs=True, reference=True)
    algorithm = AlgorithmConfig(name="dpo")
    options = {"aggregation": "prompt_mean", "max_completion_tokens": 8, "skip_zero_advantage": False}
    packed = pack(examples, micro_batch_tokens=1, keep_groups=True, **options)
    assert len(packed.micro_batches) == 4
    for micro in packed.micro_batches:
        assert [examples[index].advantages_T[0].item() for index in micro.examples] == [1.0, -1.0]
        assert len(set(micro.group_B.tolist())) == 1
        scores = policy.compute_logprobs(micro)
        loss = token_loss(scores, micro, algorithm, kl_coef=0.5)
        gained = (scores.logprobs_M - micro.ref_logprobs_M).detach()
        margin = 0.5 * (gained[micro.advantages_M > 0].sum() - gained[micro.advantages_M < 0].sum()).item()
        assert loss.surrogate.margin_M.tolist() == pytest.approx([margin] * len(micro.row_M), abs=1e-13)
        assert loss.loss_M.tolist() == pytest.approx([math.log(1 + math.exp(-margin))] * len(micro.row_M), abs=1e-13)


# -- mismatch between engine and trainer -----------------------------------------------------------------------------------

OLD = [math.log(ratio) - 1.0 for ratio in (1.5, 4.0, 0.4, 0.8, 1.2)]
"""Engine log-probs of -1: ratios 1.5, 4, 0.4 | 0.8, 1.2; the completions' products are 2.4 and 0.96."""


@pytest.mark.parametrize(
    ("kind", "weights"),
    [
        ("token_truncate", [1.5, 2.0, 0.4, 0.8, 1.2]),
        ("token_mask", [1.5, 0.0, 0.0, 0.8, 1.2]),
        ("sequence_truncate", [2.0, 2.0, 2.0, 0.96, 0.96]),
        ("sequence_mask", [0.0, 0.0, 0.0, 0.96, 0.96]),
    ],
)
def test_mismatch_weights_by_hand(kind, weights):
    old_M = double(*OLD, grad=True)
    row_M, sampling_M = torch.tensor([0, 0, 0, 1, 1]), double(*[-1.0] * 5)
    found_M = compute_mismatch_weights(old_M, sampling_M, row_M, 2, kind, 2.0)
    assert found_M.tolist() == pytest.approx(weights, abs=1e-14)
    assert not found_M.requires_grad
    huge_M = compute_mismatch_weights(double(500.0, -500.0), double(-500.0, 500.0), torch.tensor([0, 1]), 2, kind, 2.0)
    assert huge_M.tolist() == pytest.approx([0.0 if kind.endswith("mask") else 2.0, 0.0], abs=1e-8)


def test_equal_engine_and_trainer_weigh_exactly_one():
    logprobs_M, row_M = double(-1.0, -2.0, -0.1), torch.tensor([0, 0, 1])
    for kind in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"):
        assert compute_mismatch_weights(logprobs_M, logprobs_M, row_M, 2, kind, 2.0).tolist() == [1.0] * 3


@pytest.mark.parametrize("off_policy", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_mismatch_weights_multiply_the_surrogate_and_never_the_kl(kind, off_policy):
    """Through token_loss: policy term times weight, KL term as without, and no gradient through the weight."""
    policy = tiny_policy()
    examples = ragged_examples(policy, off_policy=off_policy, reference=True, mismatch=0.6)
    options = {"aggregation": "sequence_mean", "max_completion_tokens": 8, "skip_zero_advantage": False}
    (micro,) = pack(examples, micro_batch_tokens=10_000, **options).micro_batches
    logprobs_M = policy.compute_logprobs(micro).logprobs_M.detach().requires_grad_()
    scores = TokenScores(logprobs_M, torch.zeros_like(logprobs_M))
    plain = token_loss(scores, micro, AlgorithmConfig(kl_coef=0.5), 0.5)
    weighed = token_loss(scores, micro, AlgorithmConfig(kl_coef=0.5, mismatch_weight=kind), 0.5)
    old_M = logprobs_M.detach() if micro.old_logprobs_M is None else micro.old_logprobs_M
    weights_M = compute_mismatch_weights(old_M, micro.sampling_logprobs_M, micro.row_M, len(examples), kind, 2.0)
    assert weights_M.min() < 0.99
    assert weights_M.max() > 1.01
    assert torch.equal(weighed.mismatch_weights_M, weights_M)
    assert torch.equal(weighed.kl_loss_M, plain.kl_loss_M)
    assert torch.equal(weighed.policy_loss_M, plain.policy_loss_M * weights_M)
    assert (weighed.loss_M - (plain.policy_loss_M * weights_M + plain.kl_loss_M)).abs().max().item() < 1e-14
    pull_M = torch.autograd.grad(plain.policy_loss_M.sum(), logprobs_M, retain_graph=True)[0]
    kl_pull_M = torch.autograd.grad(plain.kl_loss_M.sum(), logprobs_M, retain_graph=True)[0]
    gradient_M = torch.autograd.grad(weighed.loss_M.sum(), logprobs_M)[0]
    assert (gradient_M - (pull_M * weights_M + kl_pull_M)).abs().max().item() < 1e-14
    # The slow twin, from the same numbers.
    batch = {"row": micro.row_M, "advantages": micro.advantages_M, "ref": micro.ref_logprobs_M}
    batch |= {"sampling": micro.sampling_logprobs_M}
    if micro.old_logprobs_M is not None:
        batch["old"] = micro.old_logprobs_M
    theirs = logprobs_M.detach().clone().requires_grad_()
    again = token_loss(scores, micro, AlgorithmConfig(kl_coef=0.5, mismatch_weight=kind), 0.5).loss_M
    compare(again, logprobs_M, reference_losses(theirs, batch, kl_coef=0.5, mismatch_weight=kind), theirs)


# -- KL and surrogate together -------------------------------------------------------------------------------------------


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
        policy_V = torch.log_softmax(logits_V.detach(), 0)
        divergences.append((policy_V.exp() * (policy_V - torch.log_softmax(ref_V, 0))).sum().item())
    assert divergences == sorted(divergences, reverse=True)
    assert divergences[-1] < 0.2 * divergences[0]
