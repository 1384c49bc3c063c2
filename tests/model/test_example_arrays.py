"""Examples as arrays equal single examples: every array operation against a loop over single ones."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.algorithms.advantages import TokenCredit
from cohort.algorithms.named import find_named
from cohort.errors import InvariantError
from cohort.model.examples import Example, Examples, join_examples, make_examples
from cohort.model.packing import Layouts, MicroBatch, pack, plan_minibatches
from cohort.training.credit import broadcast_to_tokens, scatter_to_tokens
from cohort.training.experience import average_advantages, mark_fresh, select_whole_pairs
from cohort.types import Completion, Outcome, Prompt, Rollout

GROUP = 3


@st.composite
def draw_rollouts(draw: st.DrawFn) -> list[Rollout]:
    """Groups of three: empty completions, unscored ones, ends at the limit, masks with holes and without a trained token."""
    rollouts = []
    for group in range(draw(st.integers(1, 4))):
        prompt = Prompt(10 + group, "q", {}, tuple(range(1, 2 + draw(st.integers(0, 3)))))
        for sample in range(GROUP):
            length = draw(st.integers(0, 5))
            mask = draw(st.none() | st.lists(st.booleans(), min_size=length, max_size=length).map(tuple))
            logprobs = draw(st.lists(st.floats(-9, 0, width=32), min_size=length, max_size=length))
            end = draw(st.sampled_from(["stop", "length"]))
            reward = draw(st.none() | st.sampled_from([0.0, 1.0, 0.5]))
            completion = Completion(tuple(range(20, 20 + length)), tuple(logprobs), end, "", mask)
            rollouts.append(Rollout(prompt, group, sample, completion, Outcome({}, reward, None), 0))
    return rollouts


def make_one_by_one(rollouts: list[Rollout], left_out: set[int], mask_truncated: bool) -> list[Example]:
    """The reference implementation of make_examples."""
    found = []
    for place, one in enumerate(rollouts):
        completion = one.completion
        if one.outcome.reward is None or one.group in left_out:
            continue
        mask_T = torch.tensor(completion.mask, dtype=torch.bool)
        if mask_truncated and completion.end == "length":
            mask_T = torch.zeros_like(mask_T)
        logprobs_T = torch.tensor(completion.sampling_logprobs, dtype=torch.float32)
        ids = (one.prompt.token_ids, completion.token_ids)
        found.append(Example(place, one.group, *ids, mask_T, torch.zeros(len(mask_T)), logprobs_T))
    return found


def are_same(one: Any, other: Any) -> bool:
    """Compare field by field, tensors with their dtypes."""
    for field in fields(one):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if isinstance(left, torch.Tensor):
            if left.dtype != right.dtype or not torch.equal(left, right):
                return False
        elif isinstance(left, np.ndarray):
            if not np.array_equal(left, right):
                return False
        elif field.name not in ("layout", "before") and left != right:
            return False
    return True


def check_same(arrays: Examples, singles: list[Example]) -> None:
    assert len(arrays) == len(singles)
    assert all(are_same(one, other) for one, other in zip(arrays, singles, strict=True))
    assert all(are_same(arrays[place], one) for place, one in enumerate(singles))
    assert arrays.trained_N.tolist() == [one.trained_tokens for one in singles]
    assert arrays.num_tokens_N.tolist() == [one.num_tokens for one in singles]
    pushed = [bool((one.advantages_T[one.loss_mask_T] != 0).any()) for one in singles]
    assert arrays.has_gradient_N.tolist() == pushed


def with_numbers(singles: list[Example], seed: int) -> list[Example]:
    """Advantages, some of them 0, and old log-probs."""
    generator = torch.Generator().manual_seed(seed)
    return [
        replace(
            one,
            advantages_T=torch.randint(-1, 2, (len(one.completion_ids),), generator=generator).float(),
            old_logprobs_T=torch.randn(len(one.completion_ids), generator=generator),
        )
        for one in singles
    ]


@settings(max_examples=60, deadline=None)
@given(draw_rollouts(), st.sets(st.integers(0, 3)), st.booleans(), st.integers(0, 99))
def test_arrays_equal_single_examples(rollouts, left_out, mask_truncated, seed):
    singles = make_one_by_one(rollouts, left_out, mask_truncated)
    check_same(make_examples(rollouts, left_out=left_out, mask_truncated=mask_truncated), singles)
    singles = with_numbers(singles, seed)
    arrays = join_examples(singles)
    check_same(arrays, singles)
    assert join_examples(arrays) is arrays
    places = torch.randperm(len(singles), generator=torch.Generator().manual_seed(seed)).tolist()[: seed % 7]
    check_same(arrays.select(places), [singles[place] for place in places])
    check_same(arrays[1:], singles[1:])
    assert arrays.select(range(len(arrays))) is arrays
    with pytest.raises(IndexError):
        arrays[len(arrays)]


def test_a_field_that_only_some_have_is_refused():
    one, other = make_one_by_one([make_rollout(2), make_rollout(3)], set(), False)
    with pytest.raises(InvariantError, match="with and without old log-probs"):
        join_examples([replace(one, old_logprobs_T=torch.zeros(2)), other])


def make_rollout(length: int, group: int = 0, versions: tuple[tuple[int, int], ...] = ()) -> Rollout:
    completion = Completion((7,) * length, (0.0,) * length, "stop", "", versions=versions)
    return Rollout(Prompt(0, "q", {}, (1,)), group, 0, completion, Outcome({}, 1.0, None), 4)


# -- packing -----------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(draw_rollouts(), st.integers(0, 99), st.booleans(), st.booleans(), st.booleans())
def test_minibatches_of_arrays_equal_those_of_single_examples(rollouts, seed, skip, keep_groups, share_prompts):
    """Two passes of two minibatches with cached layouts: every micro-batch, tensor by tensor and token by token."""
    singles = with_numbers(make_one_by_one(rollouts, set(), False), seed)
    arrays, layouts = join_examples(singles), Layouts()
    options: dict[str, Any] = {
        "aggregation": "sequence_mean", "max_completion_tokens": 8, "micro_batch_tokens": 11,
        "skip_zero_advantage": skip, "keep_groups": keep_groups, "share_prompts": share_prompts,
    }  # fmt: skip
    for members in plan_minibatches(arrays.group_N, 2, 2, seed, 1):
        chosen = [singles[place] for place in members]
        packed, twin = pack(arrays.select(members), layouts=layouts, **options), pack(chosen, **options)
        figures = (packed.completions, packed.trained_tokens, packed.forwarded_tokens, list(packed.weights_N))
        assert figures == (twin.completions, twin.trained_tokens, twin.forwarded_tokens, list(twin.weights_N))
        assert len(packed.micro_batches) == len(twin.micro_batches)
        for micro, other in zip(packed.micro_batches, twin.micro_batches, strict=True):
            assert are_same(micro, other)
            assert torch.equal(micro.layout.token_ids_T, other.layout.token_ids_T)
            check_values(micro, chosen)
        pushed = [one.trained_tokens > 0 and (not skip or bool((one.advantages_T * one.loss_mask_T).any())) for one in chosen]
        rows = sorted(row for micro in packed.micro_batches for row in micro.examples)
        assert rows == [place for place, is_pushed in enumerate(pushed) if is_pushed]


def check_values(micro: MicroBatch, singles: list[Example]) -> None:
    rows = [singles[row] for row in micro.examples]
    for name in ("advantages", "sampling_logprobs", "old_logprobs"):
        expected_M = torch.cat([getattr(one, f"{name}_T")[one.loss_mask_T] for one in rows])
        assert torch.equal(getattr(micro, f"{name}_M"), expected_M)
    assert micro.ref_logprobs_M is None
    ids = [
        token for one in rows for token, trained in zip(one.completion_ids, one.loss_mask_T.tolist(), strict=True) if trained
    ]
    assert micro.token_ids_M.tolist() == ids
    assert micro.row_M.tolist() == [row for row, one in enumerate(rows) for _ in range(one.trained_tokens)]


# -- credit ------------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(draw_rollouts(), st.integers(0, 99))
def test_credit_of_arrays_equals_that_of_single_examples(rollouts, seed):
    """One number per completion; and a vector for those with trained tokens, over all tokens or over the trained ones."""
    generator = torch.Generator().manual_seed(seed)
    singles = with_numbers(make_one_by_one(rollouts, set(), False), seed)
    arrays = join_examples(singles)
    advantages_N = torch.randn(len(rollouts), generator=generator, dtype=torch.float64)
    laid = [torch.full_like(one.advantages_T, float(advantages_N[one.rollout])) for one in singles]
    found = broadcast_to_tokens(advantages_N.view(-1, GROUP), arrays)
    check_same(found, [replace(one, advantages_T=own_T) for one, own_T in zip(singles, laid, strict=True)])

    rows = arrays.select(np.flatnonzero(arrays.trained_N).tolist())
    vectors = [torch.randn(one.trained_tokens if place % 2 else len(one.completion_ids)) for place, one in enumerate(rows)]
    returns = [torch.randn(one.trained_tokens) for one in rows]
    expected = {one.rollout: one for one in singles}
    for one, values, own in zip(rows, vectors, returns, strict=True):
        expected[one.rollout] = replace(one, advantages_T=spread(values, one), returns_T=spread(own, one))
    whole = [
        one if one.returns_T is not None else replace(one, returns_T=torch.zeros(len(one.completion_ids)))
        for one in expected.values()
    ]
    check_same(scatter_to_tokens(TokenCredit(vectors, returns), rows, arrays, find_named("advantage", "gae")), whole)


def spread(values: torch.Tensor, example: Example) -> torch.Tensor:
    if len(values) == len(example.completion_ids):
        return values
    spread_T = torch.zeros(len(example.completion_ids))
    spread_T[example.loss_mask_T] = values
    return spread_T


@settings(max_examples=40, deadline=None)
@given(draw_rollouts(), st.integers(0, 99))
def test_means_and_pairs_of_arrays_equal_those_of_single_examples(rollouts, seed):
    singles = with_numbers(make_one_by_one(rollouts, set(), False), seed)
    means = [0.0] * len(rollouts)
    for one in singles:
        if one.trained_tokens:
            means[one.rollout] = float(one.advantages_T[one.loss_mask_T].double().sum()) / one.trained_tokens
    assert average_advantages(join_examples(singles), len(rollouts)) == means
    pushed = [one for one in singles if (one.advantages_T * one.loss_mask_T).any()]
    whole = [one for one in pushed if sum(other.group == one.group for other in pushed) == 2]
    check_same(select_whole_pairs(singles), whole)


def test_stale_tokens_are_marked_in_all_completions():
    rollouts = [
        make_rollout(3, versions=((4, 1), (5, 2))),
        make_rollout(2),
        make_rollout(0),
        make_rollout(1, versions=((5, 1),)),
    ]
    fresh = mark_fresh(make_examples(rollouts), rollouts, 5)
    assert [one.fresh_T.tolist() for one in fresh] == [[False, True, True], [False, False], [], [True]]
    assert mark_fresh(make_examples(rollouts[1:2]), rollouts[1:2], 4).fresh_C is None
    wrong = [make_rollout(3, versions=((5, 2),))]
    with pytest.raises(InvariantError, match="versions of 2 tokens on a completion of 3"):
        mark_fresh(make_examples(wrong), wrong, 4)
