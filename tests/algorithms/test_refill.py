"""The rules of dynamic sampling, against cases worked out by hand."""

import math

import numpy as np
import pytest

from cohort.algorithms.refill import (
    GroupCounts,
    choose_groups,
    classify_group,
    count_groups,
    count_prompts_to_draw,
    explain_difficulty,
    make_refill_metrics,
)

RIGHT, WRONG, SILENT = True, False, None


@pytest.mark.parametrize(
    ("verdicts", "kind"),
    [
        ([RIGHT, WRONG], "useful"),
        ([WRONG, WRONG, WRONG, RIGHT], "useful"),
        ([SILENT, RIGHT, SILENT, WRONG], "useful"),
        ([RIGHT, RIGHT], "too_easy"),
        ([RIGHT, SILENT], "too_easy"),
        ([RIGHT], "too_easy"),
        ([WRONG, WRONG], "too_hard"),
        ([SILENT, WRONG], "too_hard"),
        ([SILENT, SILENT], "unjudged"),
        ([], "unjudged"),
    ],
)
def test_the_kinds_of_groups(verdicts, kind):
    assert classify_group(verdicts) == kind
    assert classify_group(verdicts[::-1]) == kind


GROUPS = [
    [RIGHT, RIGHT],
    [RIGHT, WRONG],
    [WRONG, WRONG],
    [WRONG, RIGHT],
    [SILENT, SILENT],
    [WRONG, SILENT],
    [RIGHT, WRONG],
]


def test_counts_and_metrics_by_hand():
    counts = count_groups(GROUPS)
    assert counts == GroupCounts(useful=3, too_easy=1, too_hard=2, unjudged=1)
    assert counts.drawn == 7
    assert make_refill_metrics(counts, rounds=2, wanted=2) == {
        "rollout/rounds": 2,
        "rollout/groups_drawn": 7,
        "rollout/groups_too_easy": 1,
        "rollout/groups_too_hard": 2,
        "rollout/groups_surplus": 1,
    }
    assert make_refill_metrics(counts, rounds=2, wanted=4)["rollout/groups_surplus"] == 0
    assert count_groups([]) == GroupCounts()


def test_the_batch_takes_the_first_useful_groups_in_the_order_drawn():
    assert choose_groups(GROUPS, 2) == [1, 3]
    assert choose_groups(GROUPS, 3) == choose_groups(GROUPS, 9) == [1, 3, 6]
    assert choose_groups(GROUPS, 0) == choose_groups([], 4) == []


@pytest.mark.parametrize(
    ("missing", "useful", "drawn", "most", "expected"),
    [
        (16, 0, 0, 500, 32),  # nothing known: 16 / (1/2)
        (16, 16, 32, 500, 32),  # 16 / (17/34)
        (24, 8, 32, 500, 91),  # 24 / (9/34) = 90.67
        (1, 31, 32, 500, 2),  # 1 / (32/34) = 1.06
        (10, 4, 13, 500, 30),  # 10 / (5/15), exactly
        (32, 0, 32, 5000, 1088),  # 32 / (1/34): none was useful, and it is still a number
        (32, 0, 32, 96, 96),  # the cap
        (8, 300, 300, 500, 9),  # 8 / (301/302) = 8.03
        (40, 1, 3, 20, 20),  # the cap stands above the need
        (0, 32, 40, 500, 0),
        (-3, 35, 40, 500, 0),
    ],
)
def test_prompts_of_the_next_round_by_hand(missing, useful, drawn, most, expected):
    assert count_prompts_to_draw(missing, useful, drawn, most) == expected


def test_the_next_round_follows_its_formula_and_its_bounds():
    rng = np.random.default_rng(0)
    for _ in range(500):
        drawn, most, missing = (int(rng.integers(1, 200)) for _ in range(3))
        useful = int(rng.integers(0, drawn + 1))
        count = count_prompts_to_draw(missing, useful, drawn, most)
        assert min(missing, most) <= count <= most
        if missing < count < most:
            assert count == math.ceil(missing * (drawn + 2) / (useful + 1) - 1e-9)


@pytest.mark.parametrize("arguments", [(4, 5, 4, 10), (4, -1, 4, 10), (4, 0, 0, 0)])
def test_impossible_counts_are_refused(arguments):
    with pytest.raises(ValueError, match="impossible"):
        count_prompts_to_draw(*arguments)


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.9])
def test_three_more_rounds_fill_the_batch_without_drawing_much_too_much(rate):
    """32 / rate prompts are needed on average; the rule draws at most a fifth more, and fills 9 batches in 10."""
    rng = np.random.default_rng(0)
    all_drawn, full = [], []
    for _ in range(500):
        useful, drawn = int(rng.binomial(32, rate)), 32
        for _ in range(3):
            count = count_prompts_to_draw(32 - useful, useful, drawn, most=320)
            useful, drawn = useful + int(rng.binomial(count, rate)), drawn + count
        all_drawn.append(drawn)
        full.append(useful >= 32)
    assert np.mean(full) > 0.9
    assert 0.9 < np.mean(all_drawn) / (32 / rate) < 1.2


def test_too_hard_in_words():
    counts = GroupCounts(useful=2, too_easy=8, too_hard=86)
    assert explain_difficulty(counts, step=12, wanted=32) == (
        "the task is too hard for this policy: in 86 of 96 groups drawn at step 12 every completion failed "
        "(8 all right, 2 mixed); the batch has 2 of 32 groups. Use easier prompts, a larger group_size, or a cold start."
    )


def test_too_easy_in_words():
    counts = GroupCounts(useful=5, too_easy=80, too_hard=10, unjudged=1)
    assert explain_difficulty(counts, step=3, wanted=32) == (
        "the task is too easy for this policy: in 80 of 96 groups drawn at step 3 every completion was right "
        "(10 all failed, 5 mixed, 1 without a verdict); the batch has 5 of 32 groups. Use harder prompts, or "
        'prompt_choice = "informative", which draws solved prompts less often; if all are solved, the run is done.'
    )


def test_uneven_in_words():
    counts = GroupCounts(useful=12, too_easy=40, too_hard=44)
    assert explain_difficulty(counts, step=12, wanted=32) == (
        "too few prompts are of the right difficulty for this policy: of 96 groups drawn at step 12, 40 were all right and "
        "44 all failed (12 mixed); the batch has 12 of 32 groups. Use prompt_choice = "
        '"informative", which prefers prompts of medium difficulty, a larger group_size, or more refill_rounds.'
    )


def test_a_reward_without_verdicts_is_not_called_difficulty():
    said = explain_difficulty(GroupCounts(useful=0, too_easy=1, too_hard=2, unjudged=29), step=1, wanted=8)
    assert said.startswith("the reward does not judge these completions: 29 of 32 groups drawn at step 1 have no verdict")
    assert "too hard" not in said


@pytest.mark.parametrize(
    ("too_easy", "too_hard", "begins"),
    [
        (0, 1, "the task is too hard"),
        (25, 75, "the task is too hard"),
        (26, 74, "too few prompts"),
        (75, 25, "the task is too easy"),
    ],
)
def test_three_quarters_on_one_side_decide(too_easy, too_hard, begins):
    assert explain_difficulty(GroupCounts(useful=1, too_easy=too_easy, too_hard=too_hard), 1, 8).startswith(begins)
