"""The checks before a run: a reward that fails on every reference answer ends it before the first step."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from cohort import session
from cohort.errors import RunError
from cohort.recipe.values import Materials
from cohort.rewards.contract import RewardPart
from cohort.rewards.runner import RewardRunner
from cohort.training.preflight import check_reference_answers, check_share
from cohort.types import Prompt
from session_tools import tiny

PROMPTS = [Prompt(n, f"{n}+{n}=", {"answer": str(2 * n)}, (1,)) for n in range(8)]


def check_reward(function, *, steps=1, data="policy", sets=(), **part):
    """The first check of the golds."""
    recipe = SimpleNamespace(
        cold_start=SimpleNamespace(completion_column="demonstration", num_steps=0),
        train=SimpleNamespace(num_steps=steps),
        algorithm=SimpleNamespace(data=data),
    )
    policy = SimpleNamespace(tokenizer=lambda text, add_special_tokens: {"input_ids": [0] * len(text)})
    with RewardRunner([RewardPart("checked", function, **part)], workers=1) as runner:
        parts = SimpleNamespace(rewards=runner, recipe=recipe, policy=policy, evaluation_sets=sets)
        return check_reference_answers(parts, PROMPTS)[0]


def is_right(text, answer):
    return text in (f"\\boxed{{{answer}}}", f"#### {answer}")


def raises_on_right(completions, answer, **columns):
    for text, gold in zip(completions, answer, strict=True):
        if is_right(text, gold):
            raise ZeroDivisionError("the right answer divides by zero")
    return [0.0] * len(completions)


async def raises_later(completions, answer, **columns):
    return raises_on_right(completions, answer)


def is_nan_on_right(completions, answer, **columns):
    return [float("nan") if is_right(text, gold) else 0.0 for text, gold in zip(completions, answer, strict=True)]


def is_text_on_right(completions, answer, **columns):
    return ["1.0" if is_right(text, gold) else 0.0 for text, gold in zip(completions, answer, strict=True)]


def leaves(completions, answer, **columns):
    raise SystemExit(3)


def here(function):
    """As a function of a script: it runs in the trainer."""

    def local(completions, answer, **columns):
        return function(completions, answer)

    return local


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (raises_on_right, "ZeroDivisionError: the right answer divides by zero"),
        (raises_later, "ZeroDivisionError: the right answer divides by zero"),
        (is_nan_on_right, "it returned float nan for a completion; return a finite float"),
        (is_text_on_right, "it returned str '1.0' for a completion"),
        (leaves, "SystemExit: 3"),
    ],
)
def test_no_reference_answer_can_be_scored(function, told):
    check = check_reward(here(function))
    assert (check.level, check.blocks) == ("failure", True)
    assert "the reward functions fail on reference answers: reward 'checked' failed on" in check.text
    assert told in check.text
    assert check.text.endswith("A text that a reward cannot read has to score 0.0: fix the function.")


def test_a_reward_that_hangs_on_every_reference_answer():
    def hangs(completions, **columns):
        time.sleep(30)

    check = check_reward(hangs, timeout_s=0.2)
    assert check.blocks
    assert "reward 'checked': no answer within timeout_s = 0.2 s" in check.text


def test_a_reward_that_fails_on_some_reference_answers_is_a_warning():
    def half(completions, answer, **columns):
        if len(completions) > 1 or int(answer[0]) % 4:
            raise ValueError("an odd one")
        return [1.0]

    check = check_reward(half)
    assert (check.level, check.blocks) == ("failure", False)
    assert "failed on 20 of 40 completions" in check.text


def test_what_was_not_checked_is_skipped_not_ok():
    runner = SimpleNamespace(for_set=lambda name: SimpleNamespace(parts=()))
    run = SimpleNamespace(recipe=SimpleNamespace(cold_start=SimpleNamespace(completion_column="demonstration")), rewards=runner)
    (check,) = check_reference_answers(run, [Prompt(0, "a", {}, (1,)), Prompt(1, "b", {}, (1,))])
    assert (check.level, "neither an `answer` nor a demonstration" in check.text) == ("skip", True)
    same = check_share("shuffled answers", [], "answers of other rows score as success")
    assert (same.level, same.text) == ("skip", "all rows have the same answer")


@pytest.mark.parametrize(("sets", "blocks"), [({}, False), ({"held_out": PROMPTS}, True)])
def test_a_run_that_never_asks_the_reward_is_not_stopped(sets, blocks):
    assert check_reward(here(raises_on_right), data="demonstrations", sets=sets).blocks is blocks
    assert check_reward(here(raises_on_right), steps=0, sets=sets).blocks is blocks


def test_the_run_stops_before_its_first_step_and_says_why(tmp_path):
    """A policy that knows nothing never meets the fault: without the stop it would train on and be blamed."""

    def mine(completions, demonstration, **columns):
        if any(text == right for text, right in zip(completions, demonstration, strict=True)):
            raise ZeroDivisionError("the right answer divides by zero")
        return [0.0] * len(completions)

    recipe = tiny(tmp_path, **{"rewards": [{"function": "python:mine"}], "cold_start.num_steps": 0, "train.num_steps": 1})
    words = r"answers: (?s:.*)reward 'mine' failed on (?s:.*)ZeroDivisionError: the right answer(?s:.*)fix the function"
    with pytest.raises(RunError, match=words):
        session.start(recipe, Materials(functions={"python:mine": mine}))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
