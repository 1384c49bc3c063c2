"""Measurements of an update: limits that are met exactly, shares that are cut, and quantiles by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cohort.engine.sampling import find_mismatch_limit
from cohort.errors import InvariantError
from cohort.model.optim import StepReport
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.training.updates import LARGEST_ROUNDED_KL, Measured, UpdateMeter, check_same_policy, kl_limit, quantile


def meter_of(off: list[float], kl: float | None = None) -> UpdateMeter:
    largest = None if kl is None else torch.tensor(kl)
    return UpdateMeter(AlgorithmConfig(), {0: Measured(mismatch_M=torch.tensor(off), kl_max=largest)})


@pytest.mark.parametrize(
    ("off", "limit", "passes"),
    [
        ([0.5] + [0.0] * 15, 0.5, True),
        ([0.5] + [0.0] * 15, 0.49, False),
        ([1.0] * 4, 10.0, True),  # of the mean, the limit is a tenth
        ([1.125] * 4, 10.0, False),
        ([2.0**-20] * 10, 2.0**-20, True),  # a mean below 1e-6 passes, however small the limit is
        ([2.0**-19] * 10, 2.0**-19, False),
    ],
)
def test_a_difference_at_the_limit_passes_and_a_larger_one_does_not(off, limit, passes):
    if passes:
        check_same_policy(meter_of(off), limit, None)
        return
    with pytest.raises(InvariantError, match="engine and trainer disagree before any update"):
        check_same_policy(meter_of(off), limit, None)


def test_the_kl_to_the_reference_may_reach_its_limit():
    check_same_policy(meter_of([0.0], kl=0.25), 1e-5, 0.25)
    check_same_policy(meter_of([0.0], kl=0.25), 1e-5, None)  # no reference with equal weights
    check_same_policy(UpdateMeter(AlgorithmConfig()), 1e-5, 0.0)  # a rank without micro-batches
    for limit, allowed in ((0.125, r"at most 1e-01 \(rounding\)"), (0.0, "exactly 0")):
        with pytest.raises(InvariantError, match=rf"2\.50e-01 before any update; .* must be {allowed}\."):
            check_same_policy(meter_of([0.0], kl=0.25), 1e-5, limit)
    with pytest.raises(InvariantError, match="is nan before any update"):
        check_same_policy(meter_of([0.0], kl=float("nan")), 1e-5, 0.25)


def test_the_limit_of_the_kl_follows_from_that_of_the_log_probs():
    def model(dtype: torch.dtype, device: str = "cuda", layers: int = 2) -> Any:
        config = SimpleNamespace(num_hidden_layers=layers, hidden_size=64)
        return SimpleNamespace(dtype=dtype, device=torch.device(device), config=SimpleNamespace(get_text_config=lambda: config))

    assert kl_limit(model(torch.float32, "cpu"), own_attention=True) == 0.0
    for given, own in ((model(torch.float32, "cpu"), False), (model(torch.float32), True)):
        assert kl_limit(given, own) == pytest.approx(find_mismatch_limit(given) ** 2 / 2)
        assert 0 < kl_limit(given, own) < LARGEST_ROUNDED_KL
    assert kl_limit(model(torch.bfloat16, layers=10_000), True) == LARGEST_ROUNDED_KL


def test_what_is_measured_of_pairs_and_of_mismatch_weights_by_hand():
    """Two pairs of one token each: gains over the reference by the sign of the advantage, and weights at the cap."""
    algorithm = AlgorithmConfig(name="dpo")
    micro: Any = SimpleNamespace(
        idle=False,
        place=0,
        num_rows=4,
        examples=(0, 1, 2, 3),
        row_M=torch.arange(4),
        loss_weights_M=torch.tensor([0.5, 0.5, 0.25, 0.25]),
        advantages_M=torch.tensor([1.0, -1.0, 1.0, -1.0]),
        ref_logprobs_M=torch.tensor([-1.0, -1.0, -2.0, -2.0]),
        sampling_logprobs_M=torch.zeros(4),
        fresh_M=None,
        layout=SimpleNamespace(num_tokens=9),
    )
    logprobs_M = torch.tensor([-0.5, -1.5, -2.5, -2.25])
    scores: Any = SimpleNamespace(logprobs_M=logprobs_M, entropy_M=torch.ones(4))
    none_M = torch.zeros(4, dtype=torch.bool)
    surrogate = SimpleNamespace(
        ratio_M=torch.ones(4), below_M=none_M, above_M=none_M, margin_M=torch.tensor([1.0, 1.0, -0.25, 0.0])
    )
    loss: Any = SimpleNamespace(
        surrogate=surrogate,
        coefficient_M=torch.ones(4),
        loss_M=torch.tensor([1.0, 1.0, 2.0, 2.0]),
        policy_loss_M=torch.tensor([1.0, 1.0, 2.0, 2.0]),
        kl_loss_M=None,
        mismatch_weights_M=torch.tensor([1.0, algorithm.mismatch_cap, 0.5, 0.0]),
    )
    meter = UpdateMeter(algorithm)
    meter.add(scores, micro, loss)
    sums = meter.add_up()
    assert (sums["loss/chosen_gain"], sums["loss/rejected_gain"]) == (0.5 - 0.5, -0.5 - 0.25)
    assert (sums["loss/margin"], sums["loss/preferred"], sums["loss/total"]) == (1.0 - 0.0625, 1.0, 2.0)
    assert (sums["loss/mismatch_weight"], sums["loss/mismatch_cut"]) == (1.5 + algorithm.mismatch_cap, 1.0)
    assert (sums["tokens"], sums["rows"], meter.own_tokens) == (4.0, 4.0, 9)
    masked = UpdateMeter(algorithm.model_copy(update={"mismatch_weight": "token_mask"}))
    masked.add(scores, micro, loss)
    assert masked.add_up()["loss/mismatch_cut"] == 1.0
    micro.place = 1
    meter.add(scores, micro, loss)
    assert meter.add_up() == {name: 2 * value for name, value in sums.items()}
    tokens = {"executed_tokens": 9, "forwarded_tokens": 8, "trained_tokens": 4}
    minibatch: Any = SimpleNamespace(micro_batches=[micro], **tokens)
    row = meter.metrics(StepReport(1e-3, 0.5, clipped=True, skipped=False), minibatch)
    assert (row["loss/rejected_gain"], row["loss/margin"], row["loss/entropy"]) == (2 * -0.75 / 4, 2 * 0.9375, 1.0)
    assert (row["loss/mismatch_cut"], row["loss/trained_tokens"], row["optim/grad_norm"]) == (0.25, 8.0, 0.5)


def test_nearest_rank_quantiles():
    values_M = torch.arange(1.0, 21.0).flip(0)
    assert [quantile(values_M, share) for share in (0.0, 0.05, 0.051, 0.5, 0.95, 0.951, 1.0)] == [1, 1, 2, 10, 19, 20, 20]
    assert quantile(torch.tensor([3.0]), 0.05) == 3.0
