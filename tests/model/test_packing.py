"""pack() and its helpers: shifts, masks, excluded rows, and how a batch is split."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cohort.algorithms.named import NAMED
from cohort.errors import InvariantError
from cohort.model import packing
from cohort.model.examples import Example, make_examples
from cohort.model.packing import Layouts, MicroBatch, cut_by_tokens, pack, plan_minibatches
from cohort.training.state import TrainState
from conftest import ragged_examples, rollout, tiny_policy
from session_tools import train_tiny

OPTIONS = {"aggregation": "token_mean", "max_completion_tokens": 8, "skip_zero_advantage": False}


def with_common_prompts(examples: list[Example]) -> list[Example]:
    """The prompt of a group's first example for all of the group."""
    firsts: dict[int, tuple[int, ...]] = {}
    return [replace(example, prompt_ids=firsts.setdefault(example.group, example.prompt_ids)) for example in examples]


def check_the_tokens_of(micro: MicroBatch, examples: list[Example], weight: float) -> list[tuple[int, int]]:
    """Every trained token has its own values and is predicted from the token before it; returns (example, place) of each."""
    layout, seen = micro.layout, []
    assert micro.num_rows == layout.num_rows == len(micro.group_B)
    for number, row in enumerate(micro.row_M.tolist()):
        example = examples[micro.examples[row]]
        places = example.loss_mask_T.nonzero().squeeze(1).tolist()
        place = places[int((micro.row_M[:number] == row).sum())]
        seen.append((micro.examples[row], place))
        assert micro.token_ids_M[number] == example.completion_ids[place]
        before, whole = int(micro.before.index_N[number]), example.prompt_ids + example.completion_ids
        at = len(example.prompt_ids) + place
        assert layout.token_ids_T[before] == whole[at - 1]
        assert layout.positions_T[before] == at - 1
        assert micro.advantages_M[number] == example.advantages_T[place]
        assert micro.old_logprobs_M[number] == example.old_logprobs_T[place]
        assert micro.ref_logprobs_M[number] == example.ref_logprobs_T[place]
        assert micro.group_B[row] == example.group
        assert micro.sampling_logprobs_M[number] == example.sampling_logprobs_T[place]
        assert micro.loss_weights_M[number] == weight
    return seen


@pytest.mark.parametrize("share_prompts", [False, True])
def test_layouts_are_reused_with_other_values(share_prompts):
    """Scoring comes first, without weights or advantages; training then reuses the rows with its own values."""
    examples = with_common_prompts(ragged_examples(tiny_policy()))
    options = OPTIONS | {"micro_batch_tokens": 25, "share_prompts": share_prompts}
    layouts = Layouts()
    scoring = pack(
        [replace(one, advantages_T=torch.zeros_like(one.advantages_T)) for one in examples], layouts=layouts, **options
    )
    options["aggregation"] = "sequence_mean"
    again, anew = pack(examples, layouts=layouts, **options), pack(examples, **options)
    assert len(again.micro_batches) == len(anew.micro_batches) > 1
    for first, found, expected in zip(scoring.micro_batches, again.micro_batches, anew.micro_batches, strict=True):
        assert found.layout is first.layout
        assert found.before is first.before
        for name, value in vars(expected).items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(getattr(found, name), value), name
        assert torch.equal(found.layout.token_ids_T, expected.layout.token_ids_T)
        assert found.examples == expected.examples
        assert found.layout.to("cpu") is found.layout
        assert found.layout.to("meta").token_ids_T.device.type == "meta"
        assert found.layout.token_ids_T.device.type == "cpu", "what is kept lies on the host"
    pack(examples[1:], layouts=layouts, **options)
    pack(examples, layouts=layouts, **options | {"micro_batch_tokens": 60})
    assert len(layouts.made) == 3, "other members and another budget are other layouts"


@pytest.mark.parametrize("minibatches", [1, 3])
def test_a_step_computes_the_layout_of_each_minibatch_once(tmp_path, monkeypatch, minibatches):
    """Old, reference and two passes: as many layouts as there are minibatches of different members, one micro-batch each."""
    made: list[int] = []
    plans: list[list[list[int]]] = []
    lay_out, begin = packing._lay_out_rows, TrainState.begin_batch
    monkeypatch.setattr(packing, "_lay_out_rows", lambda *args: made.append(1) or lay_out(*args))
    monkeypatch.setattr(TrainState, "begin_batch", lambda self, batch: plans.append(batch.plan) or begin(self, batch))
    settings = {"cold_start.num_steps": 0, "evaluation.samples": 0, "train.num_steps": 1, "train.passes_per_step": 2}
    train_tiny(tmp_path, **settings, **{"train.minibatches_per_step": minibatches})
    (plan,) = plans
    assert len(plan) == 2 * minibatches
    assert len(made) == len({tuple(members) for members in plan}) < 4 * minibatches


@pytest.mark.parametrize("share_prompts", [False, True])
def test_every_trained_token_appears_once_with_its_own_values(share_prompts):
    """Through sorting, cutting and sharing, each trained token keeps its id, advantage, old and reference log-prob."""
    policy = tiny_policy()
    examples = with_common_prompts(ragged_examples(policy, off_policy=0.2, reference=True))
    holes = torch.tensor([True, False, True, True, False])
    examples[0] = replace(examples[0], loss_mask_T=holes)  # a mask with holes, as tool output in the middle would leave
    for budget in (1, 13, 20, 37, 1000):
        minibatch = pack(examples, micro_batch_tokens=budget, share_prompts=share_prompts, **OPTIONS)
        seen = []
        for micro in minibatch.micro_batches:
            assert micro.num_rows == 1 or micro.layout.num_tokens <= budget
            seen += check_the_tokens_of(micro, examples, weight=1 / minibatch.trained_tokens)
        expected = [(index, int(place)) for index, example in enumerate(examples) for place in example.loss_mask_T.nonzero()]
        assert sorted(seen) == expected
        assert minibatch.trained_tokens == len(expected) == 29
        assert minibatch.completions == 8
        shared = [micro.layout.shared is not None for micro in minibatch.micro_batches]
        assert any(shared) == (share_prompts and budget > 1)


def test_a_prompt_without_tokens_is_refused():
    example = replace(ragged_examples(tiny_policy())[0], prompt_ids=())
    with pytest.raises(InvariantError, match="a prompt has no tokens"):
        pack([example], micro_batch_tokens=100, **OPTIONS)


# -- sharing -----------------------------------------------------------------------------------------------------------


def shaped(*groups: tuple[int, tuple[int, ...]]) -> list[Example]:
    """(prompt length, completion lengths) of each group, with different ids for prompts and completions."""
    examples = []
    for group, (prompt, lengths) in enumerate(groups):
        for length in lengths:
            ids = tuple(range(100 * len(examples) + 100, 100 * len(examples) + 100 + length))
            examples.append(
                Example(
                    rollout=len(examples),
                    group=group,
                    prompt_ids=tuple(range(10 * group + 1, 10 * group + 1 + prompt)),
                    completion_ids=ids,
                    loss_mask_T=torch.ones(length, dtype=torch.bool),
                    advantages_T=torch.ones(length),
                    sampling_logprobs_T=torch.zeros(length),
                )
            )
    return examples


def test_a_shared_prompt_is_stored_once_before_all_completions():
    """Written out: prompts first, then completions in the order of their prompts, with continued positions."""
    (micro,) = pack(shaped((2, (3, 1)), (1, (2,))), micro_batch_tokens=100, share_prompts=True, **OPTIONS).micro_batches
    layout = micro.layout
    assert layout.token_ids_T.tolist() == [1, 2, 11, 100, 101, 102, 200, 300, 301]
    assert layout.positions_T.tolist() == [0, 1, 0, 2, 3, 4, 2, 1, 2]
    assert layout.segment_starts.tolist() == [0, 2, 3, 6, 7, 9]
    shared = layout.shared
    assert (shared.num_tokens, shared.longest, shared.longest_completion) == (3, 2, 3)
    assert shared.completion_starts.tolist() == [0, 3, 4, 6]
    assert shared.copies.index_N.tolist() == [0, 1, 0, 1, 2], "the prompt of each row"
    assert shared.copy_starts.tolist() == [0, 2, 4, 5]
    assert micro.before.index_N.tolist() == [1, 3, 4, 1, 2, 7]
    assert micro.row_M.tolist() == [0, 0, 0, 1, 2, 2]


def test_without_sharing_rows_follow_each_other():
    (micro,) = pack(shaped((2, (3, 1)), (1, (2,))), micro_batch_tokens=100, **OPTIONS).micro_batches
    assert micro.examples == (0, 1, 2)
    assert micro.layout.token_ids_T.tolist() == [1, 2, 100, 101, 102, 1, 2, 200, 11, 300, 301]
    assert micro.layout.positions_T.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2]
    assert micro.layout.segment_starts.tolist() == [0, 5, 8, 11]
    assert micro.before.index_N.tolist() == [1, 2, 3, 6, 8, 9]
    assert micro.layout.shared is None


@pytest.mark.parametrize(("prompt", "pays"), [(5, False), (6, True), (20, True)])
def test_sharing_is_done_where_it_saves_a_twentieth_of_the_tokens(prompt, pays):
    """Two completions of 50 after a prompt of 5: 5 of 110 tokens saved; of 6: 6 of 112."""
    examples = shaped((prompt, (50, 50)))
    (micro,) = pack(examples, micro_batch_tokens=200, share_prompts=True, **OPTIONS).micro_batches
    assert (micro.layout.shared is not None) == pays
    assert micro.layout.num_tokens == 100 + prompt * (1 if pays else 2)


def test_groups_stay_whole_if_they_fit_and_are_split_otherwise():
    """Prompts of 4, four completions of 4: 20 tokens a group, 12 a half, 8 alone."""
    examples = shaped((4, (4,) * 4), (4, (4,) * 4))

    def rows(budget: int, **options: bool) -> list[tuple[int, ...]]:
        packed = pack(examples, micro_batch_tokens=budget, share_prompts=True, **options, **OPTIONS)
        for micro in packed.micro_batches:
            shares = micro.layout.shared is not None
            assert shares == (micro.num_rows > 1)
            groups = len(set(micro.group_B.tolist()))
            assert micro.layout.num_tokens == 4 * micro.num_rows + 4 * groups
        return [micro.examples for micro in packed.micro_batches]

    assert rows(40) == [tuple(range(8))]
    assert rows(39) == rows(20) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert rows(19) == [(0, 1, 2), (3,), (4, 5, 6), (7,)]
    assert rows(12) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert rows(19, keep_groups=True) == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_only_equal_prompts_of_one_group_are_shared():
    """A group with two prompts keeps both; two groups of one prompt keep one each."""
    examples = shaped((4, (4, 4, 4, 4)), (4, (4, 4)))
    examples[1] = replace(examples[1], prompt_ids=(7, 8, 9, 9))
    examples[3] = replace(examples[3], prompt_ids=(7, 8, 9, 9))
    examples[4:] = [replace(example, prompt_ids=examples[0].prompt_ids) for example in examples[4:]]
    for keep_groups in (False, True):
        (micro,) = pack(examples, micro_batch_tokens=100, share_prompts=True, keep_groups=keep_groups, **OPTIONS).micro_batches
        assert micro.examples == (0, 2, 1, 3, 4, 5)
        assert micro.layout.num_tokens == 6 * 4 + 3 * 4
        assert micro.layout.token_ids_T[:12].tolist() == [1, 2, 3, 4, 7, 8, 9, 9, 1, 2, 3, 4]


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


def test_truncated_completions_are_masked_only_on_request():
    rollouts = [rollout(0, 0, 1.0, end="length"), rollout(0, 1, 0.0, mask=(True, False, True))]
    plain = make_examples(rollouts)
    masked = make_examples(rollouts, mask_truncated=True)
    assert [example.trained_tokens for example in plain] == [3, 2]
    assert [example.trained_tokens for example in masked] == [0, 2]
    minibatch = pack(masked, micro_batch_tokens=100, **OPTIONS)
    assert (minibatch.completions, minibatch.trained_tokens) == (1, 2)


@pytest.mark.parametrize("aggregation", sorted(NAMED["aggregation"]))
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
    # 15 and 10 tokens: exactly the first two groups fit into 30.
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
    plan = plan_minibatches(groups_N, minibatches, passes, seed, step)
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
    assert plan == plan_minibatches(groups_N, minibatches, passes, seed, step)


def test_minibatch_order_is_keyed_by_seed_step_and_pass():
    groups_N = [index // 2 for index in range(16)]
    base = plan_minibatches(groups_N, 4, 2, 0, 1)
    assert base[:4] != base[4:]
    assert base != plan_minibatches(groups_N, 4, 2, 1, 1)
    assert base != plan_minibatches(groups_N, 4, 2, 0, 2)
    # One minibatch is the whole batch in its own order: nothing to shuffle.
    assert plan_minibatches(groups_N, 1, 1, 0, 1) == [list(range(16))]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=30), st.integers(1, 120))
def test_the_budget_bounds_the_tokens(lengths, budget):
    batches = cut_by_tokens(range(len(lengths)), lengths, budget)
    assert sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    for batch in batches:
        assert sum(lengths[row] for row in batch) <= budget or len(batch) == 1
    # Longest first, so that rows of like lengths stand together.
    laid = [lengths[row] for batch in batches for row in batch]
    assert laid == sorted(laid, reverse=True)
