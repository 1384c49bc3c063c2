"""The gradient of a minibatch: the same for every way of cutting it, and equal to the slow reference, for the whole family.

Everything in float64 on a two-layer Llama, so that "the same" can mean 1e-12.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
import torch

import conftest
from cohort.algorithms.compatibility import find_contradiction
from cohort.algorithms.named import NAMED, PRESETS
from cohort.model.examples import Example
from cohort.model.packing import MicroBatch, pack
from cohort.model.policy import Policy
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.training.objective import compute_gradient_coefficient, pushes_on_all_tokens, token_loss
from conftest import (
    examples_for,
    gradients,
    library_loss_and_gradients,
    ragged_examples,
    relative_difference,
    tiny_policy,
)
from reference import Choices, Sample, batch_loss
from session_tools import prove_others

AGGREGATION_NAMES = sorted(NAMED["aggregation"])
PRESET_NAMES = sorted(PRESETS)
SHAPES = ((3, 5),) * 8
"""Eight rows of eight tokens: budgets of 8, 16, 32 and 64 cut them into 8x1, 4x2, 2x4 and 1x8."""
MASKINGS = ["plain", "masked sample", "truncated masked", "all masked"]


@cache
def policy_at(temperature: float = 1.0) -> Policy:
    return tiny_policy(temperature=temperature)


def allowed(**choices: Any) -> bool:
    return not find_contradiction(AlgorithmConfig().model_dump() | choices)


REGION_AND_AGGREGATION = [
    {"region": region, "aggregation": aggregation, "kl_coef": 0.04}
    for region in sorted(name for name, choice in NAMED["region"].items() if not choice.traits.preference)
    for aggregation in AGGREGATION_NAMES
    if allowed(region=region, aggregation=aggregation)
]
KL_IN_THE_LOSS = [
    {"region": region, "aggregation": "sequence_mean", "kl_coef": 0.3, "kl_estimator": estimator, "kl_corrected": correct}
    for region in ("clip", "sequence", "none")
    for estimator in ("k1", "k2", "k3")
    for correct in (False, True)
    if allowed(kl_estimator=estimator, kl_corrected=correct)
]
ENGINE_WEIGHTS = [
    {"mismatch_weight": f"{level}_{treatment}", "mismatch_cap": 1.5, "region": region, "kl_coef": 0.04}
    for level in ("token", "sequence")
    for treatment in ("truncate", "mask")
    for region in ("clip", "sequence")
]
DIVERGENCE_THAT_HOLDS = {"name": "dppo", "divergence_limit": 1e-4, "divergence_cap": 1.2}
"""Random tokens are improbable under these models: a limit that they reach."""
COMPOSED = [
    *REGION_AND_AGGREGATION,
    *KL_IN_THE_LOSS,
    *ENGINE_WEIGHTS,
    {"entropy_coef": 0.1, "kl_coef": 0.0},
    {"name": "dapo", "aggregation": "prompt_mean"},
    {"name": "rloo", "region": "sequence_product", "aggregation": "sequence_mean"},
    {"name": "sapo", "soft_up": 3.0, "soft_down": 0.5},
    DIVERGENCE_THAT_HOLDS,
]


def words(choices: dict[str, Any]) -> str:
    return "-".join(str(value) for value in choices.values())


def masked(example: Example, mask: list[bool] | None = None) -> Example:
    return replace(example, loss_mask_T=torch.zeros_like(example.loss_mask_T) if mask is None else torch.tensor(mask))


def with_masks(examples: list[Example], masking: str) -> list[Example]:
    """Holes, fully masked samples, or nothing left. Of a pair both or neither are masked."""
    examples = list(examples)
    pairs = examples[1].group != examples[2].group
    gone = {"plain": (), "masked sample": (2, 3) if pairs else (2,), "truncated masked": (2, 3, 4, 5) if pairs else (1, 4, 7)}
    for place in gone.get(masking, range(len(examples))):
        examples[place] = masked(examples[place])
    if masking == "masked sample":
        examples[0] = masked(examples[0], [True, False, True, True, False])
    return examples


def case(masking: str, algorithm: AlgorithmConfig, equal_lengths: bool) -> tuple[Policy, list[Example]]:
    policy = policy_at()
    shapes = {"shapes": SHAPES} if equal_lengths else {}
    return policy, with_masks(examples_for(policy, algorithm, **shapes), masking)


SPLITS = {True: (8, 16, 32), False: (1, 29, 45)}
"""Budgets for rows of equal lengths (1x8, 2x4, 4x2, 8x1) and for ragged ones (odd splits)."""
FEW_SPLITS = {True: (16,), False: (1, 29)}


def check_that_cutting_changes_nothing(
    algorithm: AlgorithmConfig, masking: str, splits: dict[bool, tuple[int, ...]] = SPLITS
) -> None:
    """1e-12 relative."""
    for equal_lengths, budgets in splits.items():
        policy, examples = case(masking, algorithm, equal_lengths)
        whole_loss, whole = library_loss_and_gradients(policy, examples, algorithm, micro_batch_tokens=10_000)
        for budget in budgets:
            loss, gradient = library_loss_and_gradients(policy, examples, algorithm, micro_batch_tokens=budget)
            assert loss == pytest.approx(whole_loss, rel=1e-12, abs=1e-12 if algorithm.aggregation == "sequence_sum" else 1e-13)
            if masking == "all masked":
                assert whole.abs().max() == gradient.abs().max() == 0.0
                assert loss == 0.0
            else:
                assert relative_difference(gradient, whole) < 1e-12
                assert whole.abs().max() > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("masking", prove_others(MASKINGS, "plain", "truncated masked"))
@pytest.mark.parametrize("kl_coef", [0.0, 0.04])
@pytest.mark.parametrize("aggregation", AGGREGATION_NAMES)
def test_the_micro_batch_size_cannot_change_the_gradient(aggregation, kl_coef, masking):
    """For every aggregation, with and without KL and masks."""
    check_that_cutting_changes_nothing(AlgorithmConfig(aggregation=aggregation, kl_coef=kl_coef), masking)


@pytest.mark.parametrize("masking", prove_others(MASKINGS, "masked sample"))
@pytest.mark.parametrize("name", PRESET_NAMES)
def test_the_micro_batch_size_cannot_change_the_gradient_of_any_algorithm(name, masking):
    check_that_cutting_changes_nothing(AlgorithmConfig(name=name), masking, FEW_SPLITS)


@pytest.mark.parametrize("choices", COMPOSED, ids=words)
def test_the_micro_batch_size_cannot_change_the_gradient_of_any_composition(choices):
    """Every region with every aggregation it allows, every estimator in the loss, every engine weight."""
    check_that_cutting_changes_nothing(AlgorithmConfig(**choices), "masked sample", {False: (29,)})


def with_common_prompts(policy: Policy, examples: list[Example]) -> list[Example]:
    """The prompt of a group's first example for all of the group; recorded log-probs stay as far from the policy's as before."""
    firsts: dict[int, tuple[int, ...]] = {}
    changed = [replace(example, prompt_ids=firsts.setdefault(example.group, example.prompt_ids)) for example in examples]
    scores = zip(policy.score_examples(examples, 10_000), policy.score_examples(changed, 10_000), strict=True)
    moved = []
    for example, (before_T, after_T) in zip(changed, scores, strict=True):
        recorded = {name: getattr(example, name) for name in ("old_logprobs_T", "ref_logprobs_T", "sampling_logprobs_T")}
        shifted = {name: values_T + (after_T - before_T) for name, values_T in recorded.items() if values_T is not None}
        moved.append(replace(example, **shifted))
    return moved


@pytest.mark.slow
@pytest.mark.parametrize("masking", ["plain", "masked sample"])
@pytest.mark.parametrize("name", PRESET_NAMES)
def test_sharing_prompts_cannot_change_the_gradient_of_any_algorithm(name, masking, monkeypatch):
    """Each group's prompt once instead of four times (twice for a pair), at budgets that keep groups whole and cut them."""
    algorithm = AlgorithmConfig(name=name)
    policy, examples = case(masking, algorithm, equal_lengths=False)
    examples = with_common_prompts(policy, examples)
    whole_loss, whole = library_loss_and_gradients(policy, examples, algorithm)
    tokens = []

    def sharing(*args: Any, **options: Any) -> Any:
        packed = pack(*args, share_prompts=True, **options)
        tokens.append(sum(micro.layout.num_tokens for micro in packed.micro_batches))
        return packed

    monkeypatch.setattr(conftest, "pack", sharing)
    for budget in (1, 13, 29, 10_000):
        loss, gradient = library_loss_and_gradients(policy, examples, algorithm, micro_batch_tokens=budget)
        assert loss == pytest.approx(whole_loss, abs=1e-12)
        assert relative_difference(gradient, whole) < 1e-12
    rows = [example for example in examples if example.trained_tokens]
    prompts = {(example.group, example.prompt_ids) for example in rows}
    assert tokens[-1] == sum(len(example.completion_ids) for example in rows) + sum(len(prompt) for _, prompt in prompts)
    assert tokens[-1] < 0.8 * sum(example.num_tokens for example in rows)
    assert whole.abs().max() > 1e-4


def test_the_budgets_really_give_the_splits():
    _, examples = case("plain", AlgorithmConfig(kl_coef=0.0), equal_lengths=True)
    options = {"aggregation": "token_mean", "max_completion_tokens": 8, "skip_zero_advantage": False}
    sizes = {
        budget: [len(micro.examples) for micro in pack(examples, micro_batch_tokens=budget, **options).micro_batches]
        for budget in (8, 16, 32, 64, 24)
    }
    assert sizes == {8: [1] * 8, 16: [2] * 4, 32: [4, 4], 64: [8], 24: [3, 3, 2]}
    pairs = ragged_examples(policy_at(), shapes=SHAPES, pairs=True)
    split = pack(pairs, micro_batch_tokens=8, keep_groups=True, **options).micro_batches
    assert [micro.examples for micro in split] == [(0, 1), (2, 3), (4, 5), (6, 7)]


# -- what is not forwarded, and what is not there ------------------------------------------------------------------------


def without_advantage(examples: list[Example], places: tuple[int, ...]) -> list[Example]:
    return [
        replace(example, advantages_T=torch.zeros_like(example.advantages_T)) if place in places else example
        for place, example in enumerate(examples)
    ]


@pytest.mark.parametrize("aggregation", AGGREGATION_NAMES)
def test_skipping_zero_advantage_groups_gives_the_identical_gradient(aggregation):
    """They stay in the denominators, so leaving out their forward changes nothing; it does save it."""
    policy, examples = case("plain", AlgorithmConfig(kl_coef=0.0), equal_lengths=False)
    examples = without_advantage(examples, (4, 5, 6, 7))
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


SKIPPABLE = [
    choices
    for choices in [{"name": name} for name in PRESET_NAMES] + COMPOSED
    if not pushes_on_all_tokens(AlgorithmConfig(**choices))
]


@pytest.mark.parametrize(
    "choices", [*SKIPPABLE, *({**choices, "kl_coef": 0.0, "mismatch_cap": 3.0} for choices in ENGINE_WEIGHTS)], ids=words
)
def test_skipping_is_exact_wherever_it_is_done(choices):
    """Where `pushes_on_all_tokens` says that nothing acts on tokens without advantage, nothing does."""
    algorithm = AlgorithmConfig(**choices)
    assert not pushes_on_all_tokens(algorithm)
    policy, examples = case("masked sample", algorithm, equal_lengths=False)
    if algorithm.region != "dpo":
        examples = without_advantage(examples, (1, 6, 7))
    loss, gradient = library_loss_and_gradients(policy, examples, algorithm, skip_zero_advantage=False)
    skipped_loss, skipped = library_loss_and_gradients(policy, examples, algorithm, skip_zero_advantage=True)
    assert skipped_loss == pytest.approx(loss, abs=1e-13)
    assert relative_difference(skipped, gradient) < 1e-12
    assert gradient.abs().max() > 1e-4


@pytest.mark.parametrize("choices", [{"name": "grpo", "kl_coef": 0.5}, {"kl_coef": 0.0, "entropy_coef": 0.1}], ids=words)
def test_skipping_would_be_wrong_where_something_pushes_on_every_token(choices):
    algorithm = AlgorithmConfig(**choices)
    assert pushes_on_all_tokens(algorithm)
    policy, examples = case("plain", algorithm, equal_lengths=False)
    examples = without_advantage(examples, (4, 5, 6, 7))
    _, gradient = library_loss_and_gradients(policy, examples, algorithm, skip_zero_advantage=False)
    _, skipped = library_loss_and_gradients(policy, examples, algorithm, skip_zero_advantage=True)
    assert relative_difference(skipped, gradient) > 1e-3


def test_dropping_zero_variance_groups_scales_the_gradient_by_the_documented_denominators():
    """drop takes the four members out of both sides: 8/4 for N, 31/15 for tokens, 2/1 for groups. A named change of objective."""
    policy, examples = case("plain", AlgorithmConfig(kl_coef=0.0), equal_lengths=False)
    examples = without_advantage(examples, (4, 5, 6, 7))
    factors = {"sequence_mean": 2.0, "constant": 2.0, "token_mean": 31 / 15, "sequence_sum": 2.0, "prompt_mean": 2.0}
    assert set(factors) == set(NAMED["aggregation"])
    for aggregation, factor in factors.items():
        _, keep = library_loss_and_gradients(policy, examples, aggregation=aggregation)
        _, drop = library_loss_and_gradients(policy, examples[:4], aggregation=aggregation)
        assert relative_difference(drop, factor * keep) < 1e-12


@pytest.mark.parametrize("name", PRESET_NAMES)
def test_adding_a_fully_masked_sample_changes_nothing_of_any_algorithm(name):
    """Bitwise: it is not even forwarded. For dpo the sample is a pair."""
    algorithm = AlgorithmConfig(name=name)
    policy, examples = case("plain", algorithm, equal_lengths=False)
    plain = library_loss_and_gradients(policy, examples[:4], algorithm)
    added = library_loss_and_gradients(policy, [*examples[:4], masked(examples[4]), masked(examples[5])], algorithm)
    assert plain[0] == added[0]
    assert torch.equal(plain[1], added[1])
    assert plain[1].abs().max() > 0


# -- against the slow reference ------------------------------------------------------------------------------------------


def as_samples(examples: list[Example]) -> list[Sample]:
    def listed(vector: torch.Tensor | None) -> list[float] | None:
        return None if vector is None else vector.tolist()

    return [
        Sample(
            example.prompt_ids, example.completion_ids, example.loss_mask_T.tolist(), example.advantages_T.tolist(),
            listed(example.old_logprobs_T), listed(example.ref_logprobs_T), example.sampling_logprobs_T.tolist(), example.group,
        )
        for example in examples
    ]  # fmt: skip


def reference_loss_and_gradients(
    policy: Policy, examples: list[Example], algorithm: AlgorithmConfig, **options: Any
) -> tuple[float, torch.Tensor]:
    choices = algorithm.model_dump(include={field.name for field in fields(Choices)})
    if not algorithm.weighs_mismatch:  # the reference knows no auto
        choices["mismatch_weight"] = "off"
    policy.model.zero_grad(set_to_none=True)
    expected = batch_loss(
        policy.model, as_samples(examples), aggregation=algorithm.aggregation, temperature=policy.temperature, **options, **choices
    )  # fmt: skip
    expected.backward()
    return expected.item(), gradients(policy)


def check_against_the_reference(algorithm: AlgorithmConfig, **options: Any) -> None:
    """pack + compute_logprobs + token_loss against Python loops: ragged, masked, micro-batched, temperature."""
    policy = policy_at(0.8)
    examples = examples_for(policy, algorithm, seed=5, **options)
    examples[2] = masked(examples[2], [True, True, False, True, False, False, True])
    for place in (6, 7) if algorithm.region == "dpo" else (6,):
        examples[place] = masked(examples[place])
    loss, gradient = library_loss_and_gradients(policy, examples, algorithm, micro_batch_tokens=25, max_completion_tokens=9)
    expected, slow = reference_loss_and_gradients(policy, examples, algorithm, max_completion_tokens=9)
    assert abs(loss - expected) < 1e-12 * max(1.0, abs(expected))
    assert relative_difference(gradient, slow) < 1e-10
    assert slow.abs().max() > 1e-4


@pytest.mark.parametrize("off_policy", [0.0, 0.3])
@pytest.mark.parametrize("kl_coef", [0.0, 0.04])
@pytest.mark.parametrize("aggregation", AGGREGATION_NAMES)
def test_loss_and_gradients_equal_the_slow_reference(aggregation, kl_coef, off_policy):
    algorithm = AlgorithmConfig(aggregation=aggregation, kl_coef=kl_coef, clip_low=0.15, clip_high=0.28)
    check_against_the_reference(algorithm, off_policy=off_policy)


@pytest.mark.parametrize("off_policy", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("name", PRESET_NAMES)
def test_every_algorithm_equals_the_slow_reference(name, off_policy):
    check_against_the_reference(AlgorithmConfig(name=name), off_policy=off_policy)


@pytest.mark.parametrize("choices", COMPOSED, ids=words)
def test_every_composition_equals_the_slow_reference(choices):
    check_against_the_reference(AlgorithmConfig(**choices))


def test_the_coefficient_of_the_moment_is_the_one_that_counts():
    """An adaptive kl_coef is handed to the loss beside the recipe's own."""
    policy, examples = case("plain", AlgorithmConfig(name="grpo"), equal_lengths=False)
    _, adapted = library_loss_and_gradients(policy, examples, AlgorithmConfig(kl_coef=0.04), kl_coef=0.5)
    _, written = library_loss_and_gradients(policy, examples, AlgorithmConfig(kl_coef=0.5))
    _, other = library_loss_and_gradients(policy, examples, AlgorithmConfig(kl_coef=0.04))
    assert torch.equal(adapted, written)
    assert relative_difference(adapted, other) > 1e-3


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
    expected, slow = reference_loss_and_gradients(policy, examples, AlgorithmConfig(kl_coef=0.0), max_completion_tokens=8)
    assert abs(loss - expected) < 1e-12
    assert relative_difference(gradient, slow) < 1e-10
    assert loss < first_loss - 1e-4
    assert relative_difference(gradient, first) > 1e-3


# -- the gradient coefficient --------------------------------------------------------------------------------------------


def one_micro_batch(examples: list[Example], algorithm: AlgorithmConfig) -> MicroBatch:
    packed = pack(
        examples, aggregation=algorithm.aggregation, max_completion_tokens=8, micro_batch_tokens=10_000, skip_zero_advantage=False,
    )  # fmt: skip
    (micro,) = packed.micro_batches
    return micro


def test_the_coefficient_of_on_policy_grpo_is_that_of_the_paper():
    """A + kl_coef (ref / pi - 1), DeepSeekMath eq. 21."""
    policy, algorithm = policy_at(), AlgorithmConfig(name="grpo")
    micro = one_micro_batch(ragged_examples(policy, reference=True), algorithm)
    scores = policy.compute_logprobs(micro)
    found_M = token_loss(scores, micro, algorithm, kl_coef=0.3).coefficient_M
    ref_over_policy_M = torch.exp(micro.ref_logprobs_M - scores.logprobs_M.detach())
    assert (found_M - (micro.advantages_M + 0.3 * (ref_over_policy_M - 1))).abs().max().item() < 1e-14
    assert (found_M - micro.advantages_M).abs().max() > 0.05
    assert not found_M.requires_grad


def test_the_coefficient_of_a_clipped_token_is_0_and_of_a_free_one_ratio_times_advantage():
    policy, algorithm = policy_at(), AlgorithmConfig(name="dapo")
    micro = one_micro_batch(ragged_examples(policy, off_policy=0.3), algorithm)
    scores = policy.compute_logprobs(micro)
    loss = token_loss(scores, micro, algorithm, kl_coef=0.0)
    held_M = loss.surrogate.below_M | loss.surrogate.above_M
    assert 0 < held_M.sum() < len(held_M)
    assert loss.coefficient_M[held_M].tolist() == [0.0] * int(held_M.sum())
    ratio_M = torch.exp(scores.logprobs_M.detach() - micro.old_logprobs_M)
    assert (loss.coefficient_M - ratio_M * micro.advantages_M)[~held_M].abs().max().item() < 1e-14


def test_the_divergence_of_the_compositions_holds_some_tokens_and_caps_others():
    """Otherwise they would compare a plain ratio. Held tokens have a coefficient of 0, capped ones cap times advantage."""
    policy, algorithm = policy_at(0.8), AlgorithmConfig(**DIVERGENCE_THAT_HOLDS)
    micro = one_micro_batch(examples_for(policy, algorithm, seed=5), algorithm)
    loss = token_loss(policy.compute_logprobs(micro), micro, algorithm, kl_coef=0.0)
    held_M = loss.surrogate.below_M | loss.surrogate.above_M
    assert loss.surrogate.below_M.any()
    assert loss.surrogate.above_M.any()
    assert loss.coefficient_M[held_M].tolist() == [0.0] * int(held_M.sum())
    capped_M = ~held_M & (loss.surrogate.ratio_M > 1.2)
    assert capped_M.any()
    assert (loss.coefficient_M - 1.2 * micro.advantages_M)[capped_M].abs().max().item() < 1e-14


def test_the_coefficient_of_the_plain_policy_gradient_is_the_advantage():
    policy, algorithm = policy_at(), AlgorithmConfig(name="online_rft")
    micro = one_micro_batch(ragged_examples(policy), algorithm)
    found_M = token_loss(policy.compute_logprobs(micro), micro, algorithm, kl_coef=0.0).coefficient_M
    assert torch.equal(found_M, micro.advantages_M)


@pytest.mark.parametrize("choices", [{"name": name} for name in PRESET_NAMES] + KL_IN_THE_LOSS + ENGINE_WEIGHTS, ids=words)
def test_the_coefficients_are_the_whole_gradient(choices):
    """sum_t coefficient_t weight_t grad log pi_t = -grad loss through the model: the one number per token says it all."""
    algorithm = AlgorithmConfig(**choices)
    policy, examples = case("masked sample", algorithm, equal_lengths=False)
    _, gradient = library_loss_and_gradients(policy, examples, algorithm)
    micro = one_micro_batch(examples, algorithm)
    scores = policy.compute_logprobs(micro)
    coefficient_M = token_loss(scores, micro, algorithm, algorithm.kl_coef).coefficient_M
    (coefficient_M * micro.loss_weights_M * scores.logprobs_M).sum().backward()
    assert relative_difference(gradients(policy), -gradient) < 1e-12


def test_measuring_the_coefficient_leaves_the_gradient_alone():
    """The graph can still be walked, the parameters got nothing, and a loss without gradient has coefficients of 0."""
    logprobs_M = torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)
    loss_M = logprobs_M.square()
    assert compute_gradient_coefficient(loss_M, logprobs_M).tolist() == [2.0, 4.0]
    assert logprobs_M.grad is None
    loss_M.sum().backward()
    assert logprobs_M.grad.tolist() == [-2.0, -4.0]
    assert compute_gradient_coefficient(loss_M.detach(), logprobs_M).tolist() == [0.0, 0.0]
