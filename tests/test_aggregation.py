"""How tokens become one number: hand values, and completions whose tokens are all masked count nowhere."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cohort.algorithms.aggregation import AGGREGATIONS, constant, sequence_mean, token_mean
from cohort.batching import pack
from cohort.config import OptimizerConfig
from cohort.optim import MasterWeights, Optimizer
from conftest import library_loss_and_gradients, ragged_examples, tiny_policy

EVERY = sorted(AGGREGATIONS)


def test_hand_values():
    """Lengths 2, 6, 4 with a longest completion of 10."""
    assert sequence_mean([2, 6, 4], 10) == [1 / 6, 1 / 18, 1 / 12]
    assert token_mean([2, 6, 4], 10) == [1 / 12] * 3
    assert constant([2, 6, 4], 10) == [1 / 30] * 3


@pytest.mark.parametrize("name", EVERY)
def test_a_fully_masked_completion_is_in_neither_side(name):
    weights = AGGREGATIONS[name]([2, 6, 4], 10)
    assert AGGREGATIONS[name]([2, 0, 6, 0, 4], 10) == [weights[0], 0.0, weights[1], 0.0, weights[2]]
    assert AGGREGATIONS[name]([0, 0], 10) == [0.0, 0.0]
    assert AGGREGATIONS[name]([], 10) == []


def test_sums_of_weights():
    """Sequence mean and token mean are means (the weights of all tokens sum to 1); the constant's sum is the mean length share."""
    lengths = [3, 1, 7, 5]
    for name, total in (("sequence_mean", 1.0), ("token_mean", 1.0), ("constant", 16 / (4 * 10))):
        weights = AGGREGATIONS[name](lengths, 10)
        assert sum(weight * length for weight, length in zip(weights, lengths, strict=True)) == pytest.approx(total, abs=1e-15)


def masked(example):
    return replace(example, loss_mask_T=torch.zeros_like(example.loss_mask_T))


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("kl_coef", [0.0, 0.04])
def test_adding_a_fully_masked_sample_changes_nothing(name, kl_coef):
    """Loss and gradient are bitwise the same: the sample is not even forwarded."""
    policy = tiny_policy()
    examples = ragged_examples(policy, off_policy=0.3, reference=True)
    plain = library_loss_and_gradients(policy, examples[:4], aggregation=name, kl_coef=kl_coef)
    added = library_loss_and_gradients(policy, [*examples[:4], masked(examples[4])], aggregation=name, kl_coef=kl_coef)
    assert plain[0] == added[0]
    assert torch.equal(plain[1], added[1])
    assert plain[1].abs().max() > 0


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("kl_coef", [0.0, 0.04])
def test_an_all_masked_minibatch_is_a_no_op_for_weights_and_momentum(name, kl_coef):
    """Loss 0, no NaN, and AdamW does not coast on its old momentum; only the schedule's counter moves."""
    policy = tiny_policy(dtype=torch.float32)
    optimizer = Optimizer(MasterWeights(policy.model, torch.float32), OptimizerConfig(learning_rate=1e-2, weight_decay=0.1), 10)
    examples = ragged_examples(policy, reference=True, dtype=torch.float32)
    options = {"aggregation": name, "kl_coef": kl_coef}

    loss, gradient = library_loss_and_gradients(policy, examples, **options)
    for parameter, piece in zip(policy.model.parameters(), split_like(gradient, policy), strict=True):
        parameter.grad = piece
    optimizer.clip_and_step()  # momentum is not zero any more
    weights = {key: value.clone() for key, value in optimizer.weights.tensors().items()}
    moments = {key: value.clone() for key, value in optimizer.state()[0].items()}
    assert any(value.abs().max() > 0 for key, value in moments.items() if key.endswith("exp_avg"))

    batch = [masked(example) for example in examples]
    assert (
        pack(batch, aggregation=name, max_completion_tokens=8, micro_batch_tokens=64, skip_zero_advantage=False).micro_batches
        == []
    )
    loss, gradient = library_loss_and_gradients(policy, batch, **options)
    assert loss == 0.0
    assert gradient.abs().max() == 0
    report = optimizer.clip_and_step()
    assert (report.grad_norm, report.skipped, optimizer.updates) == (0.0, False, 2)
    assert all(torch.equal(value, weights[key]) for key, value in optimizer.weights.tensors().items())
    assert all(torch.equal(value, moments[key]) for key, value in optimizer.state()[0].items())


def split_like(vector: torch.Tensor, policy) -> list[torch.Tensor]:
    parameters = list(policy.model.parameters())
    pieces = vector.split([parameter.numel() for parameter in parameters])
    return [piece.view_as(parameter) for piece, parameter in zip(pieces, parameters, strict=True)]
