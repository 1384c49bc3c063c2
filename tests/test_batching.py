"""pack() and its neighbours: what is shifted, masked, left out, and how a batch is cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.algorithms.aggregation import AGGREGATIONS
from cohort.batching import make_examples, minibatch_members, pack, token_budget_rows
from cohort.errors import InvariantError
from conftest import ragged_examples, rollout, tiny_policy

OPTIONS = {"aggregation": "token_mean", "max_completion_tokens": 8, "skip_zero_advantage": False}


def test_every_trained_token_once_with_its_own_numbers():
    """Through padding, sorting and cutting, each trained token keeps its id, advantage, old and reference log-prob."""
    policy = tiny_policy()
    examples = ragged_examples(policy, off_policy=0.2, reference=True)
    holes = torch.tensor([True, False, True, True, False])
    examples[0] = replace(examples[0], loss_mask_T=holes)  # a mask with holes, as tool output in the middle would leave
    for budget in (1, 20, 37, 1000):
        minibatch = pack(examples, micro_batch_tokens=budget, **OPTIONS)
        seen = []
        for micro in minibatch.micro_batches:
            assert micro.token_ids_BT.shape[0] == 1 or micro.token_ids_BT.numel() <= budget
            for place in range(len(micro.row_M)):
                example_index = micro.examples[micro.row_M[place]]
                example = examples[example_index]
                position = int(micro.position_M[place]) - len(example.prompt_ids)
                seen.append((example_index, position))
                assert micro.token_ids_M[place] == example.completion_ids[position]
                assert micro.advantages_M[place] == example.advantages_T[position]
                assert micro.old_logprobs_M[place] == example.old_logprobs_T[position]
                assert micro.ref_logprobs_M[place] == example.ref_logprobs_T[position]
                assert micro.group_B[micro.row_M[place]] == example.group
                assert micro.sampling_logprobs_M[place] == example.sampling_logprobs_T[position]
                assert micro.loss_weights_M[place] == 1 / minibatch.trained_tokens
        expected = [(index, int(place)) for index, example in enumerate(examples) for place in example.loss_mask_T.nonzero()]
        assert sorted(seen) == expected
        assert minibatch.trained_tokens == len(expected) == 29
        assert minibatch.completions == 8


def test_mixed_old_logprobs_are_refused():
    """Dropping them silently would train some tokens as if on-policy."""
    policy = tiny_policy()
    examples = ragged_examples(policy, off_policy=0.2)
    examples[2] = replace(examples[2], old_logprobs_T=None)
    with pytest.raises(InvariantError, match="mixes"):
        pack(examples, micro_batch_tokens=1000, **OPTIONS)


def test_unscored_and_left_out_rollouts_make_no_examples():
    rollouts = [rollout(0, 0, 1.0), rollout(0, 1, None), rollout(1, 0, 0.0), rollout(1, 1, 1.0)]
    examples = make_examples(rollouts, left_out={1})
    assert [(example.rollout, example.group) for example in examples] == [(0, 0)]
    assert examples[0].advantages_T.tolist() == [0.0] * 3
    assert (examples[0].prompt_ids, examples[0].completion_ids) == ((5, 6), (7, 8, 9))
    assert examples[0].sampling_logprobs_T.tolist() == [-0.5, -1.5, -2.5]


def test_truncated_completions_are_masked_only_when_asked():
    rollouts = [rollout(0, 0, 1.0, end="length"), rollout(0, 1, 0.0, mask=(True, False, True))]
    plain = make_examples(rollouts)
    masked = make_examples(rollouts, mask_truncated=True)
    assert [example.trained_tokens for example in plain] == [3, 2]
    assert [example.trained_tokens for example in masked] == [0, 2]
    minibatch = pack(masked, micro_batch_tokens=100, **OPTIONS)
    assert (minibatch.completions, minibatch.trained_tokens) == (1, 2)


@pytest.mark.parametrize("aggregation", sorted(AGGREGATIONS))
def test_packing_nothing_is_nothing(aggregation):
    minibatch = pack([], micro_batch_tokens=100, **(OPTIONS | {"aggregation": aggregation}))
    assert (minibatch.micro_batches, minibatch.completions, minibatch.trained_tokens) == ([], 0, 0)


def test_groups_stay_together_when_they_must():
    """Three groups of unequal sizes, scattered: whole groups in every micro-batch, longest group first, within the budget
    where one group allows it; each row keeps its own group number."""
    policy = tiny_policy()
    shapes = ((3, 5), (3, 2), (3, 7), (3, 1), (4, 6), (4, 3))
    groups = (4, 2, 9, 4, 2, 4)
    examples = [
        replace(example, group=group) for example, group in zip(ragged_examples(policy, shapes=shapes), groups, strict=True)
    ]
    micro_batches = pack(examples, micro_batch_tokens=1, keep_groups=True, **OPTIONS).micro_batches
    assert [micro.examples for micro in micro_batches] == [(1, 4), (2,), (0, 3, 5)]
    assert [micro.group_B.tolist() for micro in micro_batches] == [[2, 2], [9], [4, 4, 4]]
    # Ten wide, three rows: exactly the first two groups fit into 30.
    pairs = pack(examples, micro_batch_tokens=30, keep_groups=True, **OPTIONS).micro_batches
    assert [micro.examples for micro in pairs] == [(1, 4, 2), (0, 3, 5)]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=40),
    st.integers(1, 9),
    st.integers(1, 3),
    st.integers(0, 5),
    st.integers(1, 5),
)
def test_minibatches_cover_each_example_once_per_pass_in_whole_groups(groups, minibatches, passes, seed, step):
    groups_N = sorted(groups)
    plan = minibatch_members(groups_N, minibatches, passes, seed, step)
    parts = min(minibatches, len(set(groups_N)))
    assert len(plan) == parts * passes
    for number in range(passes):
        one_pass = plan[number * parts : (number + 1) * parts]
        assert sorted(index for members in one_pass for index in members) == list(range(len(groups_N)))
        for members in one_pass:
            inside = {groups_N[index] for index in members}
            assert all((groups_N[index] in inside) == (index in members) for index in range(len(groups_N)))
        sizes = [len({groups_N[index] for index in members}) for members in one_pass]
        assert max(sizes) - min(sizes) <= 1
    assert plan == minibatch_members(groups_N, minibatches, passes, seed, step)


def test_minibatch_order_is_keyed_by_seed_step_and_pass():
    groups_N = [index // 2 for index in range(16)]
    base = minibatch_members(groups_N, 4, 2, 0, 1)
    assert base[:4] != base[4:]
    assert base != minibatch_members(groups_N, 4, 2, 1, 1)
    assert base != minibatch_members(groups_N, 4, 2, 0, 2)
    # One minibatch is the whole batch in its own order: nothing to shuffle.
    assert minibatch_members(groups_N, 1, 1, 0, 1) == [list(range(16))]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=30), st.integers(1, 120))
def test_token_budget_bounds_the_padded_size(lengths, budget):
    batches = token_budget_rows(range(len(lengths)), lengths, budget)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    for batch in batches:
        padded = len(batch) * max(lengths[row] for row in batch)
        assert padded <= budget or len(batch) == 1
