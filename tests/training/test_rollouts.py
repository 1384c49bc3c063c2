"""The groups of a step by hand: given completions, dynamic sampling, what a step keeps of what it drew, and its metrics."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cohort.base.stopwatch import Stopwatch
from cohort.rewards.contract import Scored
from cohort.training.rollouts import (
    LARGEST_ROUND,
    Collection,
    WrittenRows,
    count_verdicts,
    decode_rollouts,
    encode_rollouts,
    finish_collection,
    group_rollouts,
    merge_metrics,
)
from cohort.types import Completion, Outcome, Prompt, Rollout
from conftest import rollout

PROMPTS = [Prompt(index, f"q{index}", {}, (5, 6)) for index in range(30)]


def collected(*groups: str, wanted: int = 4, rounds: int = 1, refills: int = 2) -> Collection:
    """Groups by their verdicts: "+-" is one right and one wrong completion, "?" has no verdict."""
    success = {"+": True, "-": False, "?": None}
    made = tuple(
        [
            rollout(number, sample, float(one == "+"), success=success[one], length=2 + number)
            for sample, one in enumerate(group)
        ]
        for number, group in enumerate(groups)
    )
    made = tuple(
        [replace(one, outcome=replace(one.outcome, success=success[sign])) for one, sign in zip(group, signs, strict=True)]
        for group, signs in zip(made, groups, strict=True)
    )
    return Collection(7, wanted, refills, 3, made, tuple((len(groups), {"reward/mean": 0.5}) for _ in range(rounds)))


def test_the_first_completion_of_given_rows_is_the_chosen_one():
    source = WrittenRows({0: ((7, 8), (9,)), 1: ((7,), (8,), (9,))}, decode=lambda ids: "".join(map(str, ids)))
    completions_PG = source.complete(PROMPTS[:2], 1, 0, Stopwatch())
    assert [[one.token_ids for one in group] for group in completions_PG] == [[(7, 8), (9,)], [(7,), (8,), (9,)]]
    assert completions_PG[0][0] == Completion((7, 8), (0.0, 0.0), "stop", "78")
    scored = source.score(PROMPTS[:2], completions_PG, 1, Stopwatch())
    assert [(one.reward, one.success) for one in scored.outcomes] == [
        (1.0, None),
        (0.0, None),
        (1.0, None),
        (0.0, None),
        (0.0, None),
    ]


@pytest.mark.parametrize(
    ("collection", "missing", "short"),
    [
        (Collection(7, 4, 2, 3), 4, True),  # nothing is drawn yet
        (Collection(7, 4, 0, 3), 4, False),
        (collected("++", "--", "+-", "+-"), 4, True),  # two of four useful: 2 x 6 / 3
        (collected("+-", "+-", "+-", "++"), 2, True),  # 1 x 6 / 4, rounded up
        (collected("+-", "+-", "+-", "-+"), 0, False),
        (collected("++", "++", "++", "++"), 4 * LARGEST_ROUND, True),
        (collected("++", "--", "+-", "+-", rounds=2), 4, True),
        (collected("++", "--", "+-", "+-", rounds=3), 0, True),  # no round is left
        (collected("++", "--", "+-", "+-", refills=0), 0, False),
    ],
)
def test_the_next_round_of_dynamic_sampling(collection, missing, short):
    assert (collection.missing, collection.is_short) == (missing, short)


def test_a_round_takes_the_prompts_after_those_already_drawn():
    class Stream:
        def take(self, cursor: int, count: int) -> list[Prompt]:
            return PROMPTS[cursor : cursor + count]

    collection = collected("++", "--", "+-", "+-")
    assert [prompt.index for prompt in collection.next_prompts(Stream())] == [11, 12, 13, 14]
    completion = Completion((7,), (-0.5,), "stop", "t")
    outcomes = [Outcome({}, float(n), bool(n)) for n in range(2)]
    more = collection.add_round(PROMPTS[11:12], [[completion] * 2], Scored(outcomes, {"a": 1.0}), {"b": 2.0})
    assert more.rounds[-1] == (1, {"a": 1.0, "b": 2.0})
    assert more.groups[:4] == collection.groups
    assert more.groups[4] == [Rollout(PROMPTS[11], 0, n, completion, outcomes[n], 3) for n in range(2)]


def test_a_step_keeps_useful_groups_and_counts_all_that_were_drawn():
    found = finish_collection(collected("++", "+-", "--", "-+", "+-", "??", wanted=2), 3, sampled=True, keyed=True)
    assert [one.prompt.index for one in found.rollouts] == [1, 1, 3, 3]
    assert [(one.group, one.sample) for one in found.rollouts] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert (found.prompts_taken, found.tokens_sampled, found.useful, found.policy_version) == (6, 2 * sum(range(2, 8)), True, 3)
    assert found.verdicts == {0: (2, 2), 1: (1, 2), 2: (0, 2), 3: (1, 2), 4: (1, 2), 5: (0, 0)}
    assert found.metrics == {
        "reward/mean": 0.5,
        "rollout/rounds": 1,
        "rollout/groups_drawn": 6,
        "rollout/groups_too_easy": 1,
        "rollout/groups_too_hard": 1,
        "rollout/groups_surplus": 1,
    }


def test_without_a_useful_group_the_first_ones_are_only_recorded():
    found = finish_collection(collected("++", "--", "--", wanted=2), 3, sampled=True, keyed=True)
    assert [one.prompt.index for one in found.rollouts] == [0, 0, 1, 1]
    assert found.useful is False
    plain = finish_collection(collected("++", "--", wanted=2, refills=0), 3, sampled=False, keyed=True)
    assert (plain.useful, plain.tokens_sampled, plain.verdicts, plain.policy_version) == (True, 0, {}, None)
    assert plain.metrics == {"reward/mean": 0.5}


def test_metrics_of_rounds_are_weighted_by_their_prompts():
    rounds = [(1, {"reward/mean": 1.0}), (3, {"reward/mean": 0.0, "servers/1/waiting": 5.0}), (2, {"servers/1/waiting": 9.0})]
    assert merge_metrics(rounds) == {"reward/mean": 0.25, "servers/1/waiting": 9.0}
    assert merge_metrics(rounds[:1]) == {"reward/mean": 1.0}
    same = [[rollout(0, 0, 1.0), rollout(0, 1, 0.0)], [rollout(0, 0, 1.0)]]  # a prompt drawn twice
    assert count_verdicts(same) == {0: (2, 3)}


def test_rollouts_survive_a_checkpoint():
    completions_PG = [
        [Completion((7, 8, 9), (-0.5, -0.25, 0.0), "stop", "a", (True, False, True), ((2, 1), (3, 2)))],
        [Completion((4,), (-1.0,), "length", "b")],
    ]
    outcomes = [Outcome({"r": 0.5}, 0.5, None, "4", ("r:nan",), {"x": [1]}, ((1, 0.5),)), Outcome({"r": 1.0}, 1.0, True)]
    rollouts = [one for group in group_rollouts(PROMPTS[3:5], completions_PG, outcomes, 6) for one in group]
    assert [(one.prompt.index, one.group, one.sample, one.policy_version) for one in rollouts] == [(3, 0, 0, 6), (4, 1, 0, 6)]
    assert decode_rollouts(*encode_rollouts(rollouts), PROMPTS.__getitem__) == rollouts
