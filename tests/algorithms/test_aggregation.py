"""How tokens become one number: hand values, and completions whose tokens are all masked count nowhere."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

import reference
from cohort.algorithms.named import NAMED, constant, prompt_mean, sequence_mean, sequence_sum, token_mean
from cohort.model.optim import MasterWeights, Optimizer
from cohort.model.packing import pack
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.schema import OptimizerConfig
from cohort.training.objective import weigh_tokens
from conftest import library_loss_and_gradients, ragged_examples, tiny_policy

EVERY = sorted(NAMED["aggregation"])


def test_hand_values():
    """Lengths 2, 6, 4 with a longest completion of 10; the first two share a group."""
    groups = [0, 0, 1]
    assert sequence_mean([2, 6, 4]) == [1 / 6, 1 / 18, 1 / 12]
    assert token_mean([2, 6, 4]) == [1 / 12] * 3
    assert constant([2, 6, 4], 10) == [1 / 30] * 3
    assert sequence_sum([2, 6, 4]) == [1 / 3] * 3
    # Two groups of 8 and 4 tokens.
    assert prompt_mean([2, 6, 4], groups) == [1 / 16, 1 / 16, 1 / 8]


@pytest.mark.parametrize("name", EVERY)
def test_a_fully_masked_completion_is_in_neither_side(name):
    """The masked ones are a member of a group that has others, and a group of their own."""
    weights = weigh_tokens(AlgorithmConfig(aggregation=name))([2, 6, 4], [0, 0, 2], 10)
    assert weigh_tokens(AlgorithmConfig(aggregation=name))([2, 0, 6, 0, 4], [0, 0, 0, 1, 2], 10) == [
        weights[0],
        0.0,
        weights[1],
        0.0,
        weights[2],
    ]
    assert weigh_tokens(AlgorithmConfig(aggregation=name))([0, 0], [0, 1], 10) == [0.0, 0.0]
    assert weigh_tokens(AlgorithmConfig(aggregation=name))([], [], 10) == []


def test_sums_of_weights():
    """The three means have weights that sum to 1 over all tokens; the constant's sum is the mean length share of the limit,
    the sequence sum's is the mean length."""
    lengths, groups = [3, 1, 7, 5], [0, 1, 1, 1]
    for name, total in (
        ("sequence_mean", 1.0),
        ("token_mean", 1.0),
        ("prompt_mean", 1.0),
        ("constant", 16 / (4 * 10)),
        ("sequence_sum", 16 / 4),
    ):
        weights = weigh_tokens(AlgorithmConfig(aggregation=name))(lengths, groups, 10)
        assert sum(weight * length for weight, length in zip(weights, lengths, strict=True)) == pytest.approx(total, abs=1e-15)


@pytest.mark.parametrize("name", EVERY)
def test_random_batches_against_the_slow_reference(name):
    """Ragged lengths, masked completions, groups of different sizes in any order, group numbers with gaps."""
    generator = random.Random(name)
    for count in (1, 2, 5, 12, 30):
        lengths = [generator.choice([0, 1, 2, 3, 9]) for _ in range(count)]
        groups = [generator.choice([0, 1, 4, 7]) for _ in range(count)]
        values = [[generator.uniform(-1, 1) for _ in range(length)] for length in lengths]
        weights = weigh_tokens(AlgorithmConfig(aggregation=name))(lengths, groups, 9)
        total = sum(weight * sum(row) for weight, row in zip(weights, values, strict=True))
        assert total == pytest.approx(reference.aggregate(values, groups, name, 9), abs=1e-14)


def test_what_the_choice_changes():
    """Two equal groups of equal lengths: every mean is the same mean. One long completion is where they part."""
    means = ("sequence_mean", "token_mean", "prompt_mean")
    assert all(weigh_tokens(AlgorithmConfig(aggregation=name))([4] * 4, [0, 0, 1, 1], 8) == [1 / 16] * 4 for name in means)
    lengths, groups = [2, 2, 2, 6], [0, 0, 1, 1]
    shares = {
        name: [w * n for w, n in zip(weigh_tokens(AlgorithmConfig(aggregation=name))(lengths, groups, 8), lengths, strict=True)]
        for name in means
    }
    assert shares["sequence_mean"] == pytest.approx([1 / 4] * 4)
    assert shares["token_mean"] == pytest.approx([1 / 6, 1 / 6, 1 / 6, 1 / 2])
    assert shares["prompt_mean"] == pytest.approx([1 / 4, 1 / 4, 1 / 8, 3 / 8])


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
    packed = pack(batch, aggregation=name, max_completion_tokens=8, micro_batch_tokens=64, skip_zero_advantage=False)
    assert packed.micro_batches == []
    loss, gradient = library_loss_and_gradients(policy, batch, **options)
    assert loss == 0.0
    assert gradient.abs().max() == 0
    report = optimizer.clip_and_step(tokens_counted=packed.completions > 0)
    assert (report.grad_norm, report.skipped, optimizer.updates) == (0.0, False, 2)
    assert all(torch.equal(value, weights[key]) for key, value in optimizer.weights.tensors().items())
    assert all(torch.equal(value, moments[key]) for key, value in optimizer.state()[0].items())


def split_like(vector: torch.Tensor, policy) -> list[torch.Tensor]:
    parameters = list(policy.model.parameters())
    pieces = vector.split([parameter.numel() for parameter in parameters])
    return [piece.view_as(parameter) for piece, parameter in zip(pieces, parameters, strict=True)]
