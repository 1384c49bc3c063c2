"""The gradient of a minibatch: the same for every way of cutting it, and equal to the slow reference.

Everything in float64 on a two-layer Llama, so that "the same" can mean 1e-12.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cohort.algorithms.aggregation import AGGREGATIONS
from cohort.batching import pack
from conftest import gradients, library_loss_and_gradients, ragged_examples, relative_difference, tiny_policy
from reference import Sample, batch_loss

AGGREGATION_NAMES = sorted(AGGREGATIONS)
SHAPES = ((3, 5),) * 8
"""Eight rows of eight tokens: budgets of 8, 16, 32 and 64 cut them into 8x1, 4x2, 2x4 and 1x8."""


def masked(example, mask=None):
    return replace(example, loss_mask_T=torch.zeros_like(example.loss_mask_T) if mask is None else torch.tensor(mask))


def case(name: str, kl_coef: float, equal_lengths: bool):
    policy = tiny_policy()
    shapes = {"shapes": SHAPES} if equal_lengths else {}
    examples = ragged_examples(policy, off_policy=0.3, reference=kl_coef > 0, **shapes)
    if name == "masked sample":
        examples[2] = masked(examples[2])
        examples[0] = masked(examples[0], [True, False, True, True, False])
    elif name == "truncated masked":
        for place in (1, 4, 7):
            examples[place] = masked(examples[place])
    elif name == "all masked":
        examples = [masked(example) for example in examples]
    return policy, examples


@pytest.mark.parametrize("name", ["plain", "masked sample", "truncated masked", "all masked"])
@pytest.mark.parametrize("kl_coef", [0.0, 0.04])
@pytest.mark.parametrize("aggregation", AGGREGATION_NAMES)
def test_the_micro_batch_size_cannot_change_the_gradient(aggregation, kl_coef, name):
    """1x8, 2x4, 4x2, 8x1 and odd splits: 1e-12 relative, for every aggregation, with and without KL and masks."""
    for equal_lengths, budgets in ((True, (8, 16, 32)), (False, (1, 29, 45))):
        policy, examples = case(name, kl_coef, equal_lengths)
        options = {"aggregation": aggregation, "kl_coef": kl_coef}
        whole_loss, whole = library_loss_and_gradients(policy, examples, micro_batch_tokens=10_000, **options)
        for budget in budgets:
            loss, gradient = library_loss_and_gradients(policy, examples, micro_batch_tokens=budget, **options)
            assert loss == pytest.approx(whole_loss, abs=1e-13)
            if name == "all masked":
                assert whole.abs().max() == gradient.abs().max() == 0.0
                assert loss == 0.0
            else:
                assert relative_difference(gradient, whole) < 1e-12
                assert whole.abs().max() > 1e-4


def test_the_budgets_really_give_the_splits():
    _, examples = case("plain", 0.0, equal_lengths=True)
    options = {"aggregation": "token_mean", "max_completion_tokens": 8, "skip_zero_advantage": False}
    sizes = {
        budget: [len(micro.examples) for micro in pack(examples, micro_batch_tokens=budget, **options).micro_batches]
        for budget in (8, 16, 32, 64, 24)
    }
    assert sizes == {8: [1] * 8, 16: [2] * 4, 32: [4, 4], 64: [8], 24: [3, 3, 2]}


@pytest.mark.parametrize("aggregation", AGGREGATION_NAMES)
def test_skipping_zero_advantage_groups_gives_the_identical_gradient(aggregation):
    """They stay in the denominators, so leaving out their forward changes nothing; it does save it."""
    policy, examples = case("plain", 0.0, equal_lengths=False)
    for place in (4, 5, 6, 7):
        examples[place] = replace(examples[place], advantages_T=torch.zeros_like(examples[place].advantages_T))
    options = {"aggregation": aggregation}
    loss, gradient = library_loss_and_gradients(policy, examples, skip_zero_advantage=False, **options)
    skipped_loss, skipped = library_loss_and_gradients(policy, examples, skip_zero_advantage=True, **options)
    assert skipped_loss == pytest.approx(loss, abs=1e-14)
    assert relative_difference(skipped, gradient) < 1e-12
    packed = pack(
        examples, aggregation=aggregation, max_completion_tokens=8, micro_batch_tokens=10_000, skip_zero_advantage=True
    )
    assert sum(len(micro.examples) for micro in packed.micro_batches) == 4
    assert packed.completions == 8


def test_dropping_zero_variance_groups_scales_the_gradient_by_the_documented_denominators():
    """drop takes the four members out of both sides: 8/4 for N, 31/15 for tokens. A named change of objective."""
    policy, examples = case("plain", 0.0, equal_lengths=False)
    for place in (4, 5, 6, 7):
        examples[place] = replace(examples[place], advantages_T=torch.zeros_like(examples[place].advantages_T))
    for aggregation, factor in (("sequence_mean", 2.0), ("constant", 2.0), ("token_mean", 31 / 15)):
        _, keep = library_loss_and_gradients(policy, examples, aggregation=aggregation)
        _, drop = library_loss_and_gradients(policy, examples[:4], aggregation=aggregation)
        assert relative_difference(drop, factor * keep) < 1e-12


def as_samples(examples):
    def listed(vector):
        return None if vector is None else vector.tolist()

    return [
        Sample(
            example.prompt_ids, example.completion_ids, example.loss_mask_T.tolist(), example.advantages_T.tolist(),
            listed(example.old_logprobs_T), listed(example.ref_logprobs_T),
        )
        for example in examples
    ]  # fmt: skip


@pytest.mark.parametrize("off_policy", [0.0, 0.3])
@pytest.mark.parametrize("kl_coef", [0.0, 0.04])
@pytest.mark.parametrize("aggregation", AGGREGATION_NAMES)
def test_loss_and_gradients_equal_the_slow_reference(aggregation, kl_coef, off_policy):
    """pack + compute_logprobs + token_loss against Python loops: ragged, masked, micro-batched, asymmetric clip, temperature."""
    policy = tiny_policy(temperature=0.8)
    examples = ragged_examples(policy, seed=5, off_policy=off_policy, reference=kl_coef > 0)
    examples[2] = masked(examples[2], [True, True, False, True, False, False, True])
    examples[6] = masked(examples[6])
    options = {"aggregation": aggregation, "kl_coef": kl_coef, "clip_low": 0.15, "clip_high": 0.28, "max_completion_tokens": 9}
    loss, gradient = library_loss_and_gradients(policy, examples, micro_batch_tokens=25, **options)
    expected = batch_loss(policy.model, as_samples(examples), temperature=0.8, **options)
    policy.model.zero_grad(set_to_none=True)
    expected.backward()
    assert abs(loss - expected.item()) < 1e-12
    assert relative_difference(gradient, gradients(policy)) < 1e-10


def test_several_passes_use_the_log_probs_from_before_the_first_update():
    """Two updates on one batch: the second loss has ratios off 1, and equals the reference with the recorded old log-probs."""
    policy = tiny_policy()
    examples = ragged_examples(policy, seed=2)
    old = policy.score_examples(examples, 40)
    examples = [replace(example, old_logprobs_T=logprobs_T) for example, logprobs_T in zip(examples, old, strict=True)]
    on_policy_loss, gradient = library_loss_and_gradients(
        policy, [replace(example, old_logprobs_T=None) for example in examples]
    )
    first_loss, first = library_loss_and_gradients(policy, examples)
    assert first_loss == pytest.approx(on_policy_loss, abs=1e-12)
    assert relative_difference(first, gradient) < 1e-12
    step = 0.01 / float(first.square().sum())  # to first order the loss falls by 0.01
    with torch.no_grad():
        offset = 0
        for parameter in policy.model.parameters():
            parameter -= step * first[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()
    loss, gradient = library_loss_and_gradients(policy, examples)
    expected = batch_loss(policy.model, as_samples(examples), aggregation="sequence_mean", max_completion_tokens=8)
    expected.backward()
    assert abs(loss - expected.item()) < 1e-12
    assert relative_difference(gradient, gradients(policy)) < 1e-10
    assert loss < first_loss - 1e-4
    assert relative_difference(gradient, first) > 1e-3
