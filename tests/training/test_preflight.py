"""The checks before a run: a reward that fails on every reference answer ends it before the first step."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cohort import session
from cohort.data.prompts import PromptReport
from cohort.errors import RunError
from cohort.recipe.values import Materials
from cohort.rewards.contract import RewardPart
from cohort.rewards.runner import RewardRunner
from cohort.training.build import EncodedData
from cohort.training.preflight import Check, check_prompt_lengths, check_reference_answers, check_rollouts, check_share
from cohort.types import Prompt, Rollout, Sampling
from conftest import rollout
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


# -- trial rollouts ----------------------------------------------------------------------------------------------------


def trial(*groups: list[Rollout], limit: int = 256, cold_steps: int = 0) -> dict[str, Check]:
    rollouts = [one for group in groups for one in group]
    sampling = SimpleNamespace(group_size=len(groups[0]), max_completion_tokens=limit)
    parts: Any = SimpleNamespace(sampling=sampling, recipe=SimpleNamespace(cold_start=SimpleNamespace(num_steps=cold_steps)))
    return {check.name: check for check in check_rollouts(parts, rollouts)}


def test_trial_rollouts_warn_of_cut_completions_and_of_copies():
    """Fails if the doctor's limits for truncation, copies or groups without a signal are never reached."""
    good = [[rollout(group, sample, float(sample % 2), token_ids=(7, 8 + sample)) for sample in range(4)] for group in range(2)]
    assert {check.level for check in trial(*good).values()} == {"ok"}
    assert "2 of 2," in trial(*good)["success"].text
    cut = [[replace(one, completion=replace(one.completion, end="length")) for one in group] for group in good]
    assert trial(*cut)["truncation"].level == "warning"
    assert "100% of completions were truncated at 256 tokens" in trial(*cut)["truncation"].text
    assert "Raise sampling.max_completion_tokens" in trial(*cut)["truncation"].text
    copies = [[replace(one, completion=group[0].completion) for one in group] for group in good]
    assert trial(*copies)["diversity"].level == "warning"
    solved = [[rollout(group, sample, 1.0, token_ids=(7, 8 + sample)) for sample in range(4)] for group in range(2)]
    assert trial(*solved)["success"].level == "warning"


def group_of(*rewards: float | None, cut: int = 0, copies: bool = False, group: int = 0) -> list[Rollout]:
    """One group; the first `cut` completions are truncated."""
    ends = ["length"] * cut + ["stop"] * (len(rewards) - cut)
    return [
        rollout(group, sample, reward, end=ends[sample], token_ids=(7, 8 + sample * (not copies)), text=f"t{sample}")
        for sample, reward in enumerate(rewards)
    ]


def test_success_and_the_predicted_share_of_useful_groups_by_hand():
    """Groups of 2: rates 1/2 and 0, mean 1/4, pooled (4/4 + 1/2) / 5 = 3/10, pulled to 2/5 and 3/20: 0.48 and 0.255 useful."""
    found = trial(group_of(1.0, 0.0), group_of(0.0, 0.0, group=1))
    assert found["success"].text == "25.0% success on 2 prompts x 2; groups with signal: 1 of 2, 37% predicted"
    assert found["success"].level == "ok"
    hard, easy = trial(group_of(0.0, 0.0))["success"], trial(group_of(1.0, 1.0))["success"]
    assert (hard.level, "Too hard" in hard.text, "Too easy" in hard.text) == ("warning", True, False)
    assert (easy.level, "Too hard" in easy.text, "Too easy" in easy.text) == ("warning", False, True)
    half = trial(group_of(1.0, 1.0), group_of(0.0, 0.0, group=1))["success"]
    assert "Too easy" in half.text  # at a mean of one half
    before = trial(group_of(0.0, 0.0), cold_steps=1)["success"]
    assert (before.level, before.text[-46:]) == ("ok", " predicted (before the cold start, which comes first)"[-46:])


def test_trial_rollouts_at_the_limits():
    three = trial(group_of(*[1.0, 0.0] * 5, cut=3))["truncation"]
    four = trial(group_of(*[1.0, 0.0] * 5, cut=4))["truncation"]
    assert (three.level, four.level) == ("ok", "warning")
    assert three.text == "30% of completions were truncated at 256 tokens; mean length 2"
    assert trial(group_of(*[1.0, 0.0] * 5, cut=4), cold_steps=1)["truncation"].text.endswith("2 (before the cold start)")
    # 3 completions: 2 distinct ones are enough, copies are not; a group of one cannot repeat itself.
    assert trial(group_of(1.0, 0.0, 0.0, copies=True))["diversity"].level == "warning"
    two = [*group_of(1.0, 0.0), *group_of(0.0, copies=True)]
    assert trial(two)["diversity"] == Check("ok", "diversity", "67% of the completions of a group are distinct")
    assert trial(group_of(1.0))["diversity"].level == "ok"
    # The example is the shortest completion of the highest reward; one without a score counts as 0.
    shown = trial([*group_of(None, -1.0), rollout(0, 2, 0.5, length=9, text="long"), rollout(0, 3, 0.5, text="short")])[
        "example"
    ]
    assert shown.text == "'q' -> 'short' (reward 0.5)"


def test_a_share_of_verdicts_at_its_bounds():
    def level(right: int, of: int, **bounds: float) -> str:
        return check_share("answers", [True] * right + [False] * (of - right), "rows", **bounds).level

    assert [level(99, 100, low=0.99), level(98, 100, low=0.99)] == ["ok", "warning"]
    assert [level(1, 100, high=0.01), level(2, 100, high=0.01)] == ["ok", "warning"]
    assert [level(1, 2, low=0.99, fails_below=0.5), level(1, 3, low=0.99, fails_below=0.5)] == ["warning", "failure"]
    assert check_share("answers", [True, False], "rows", high=0.1).text.startswith("1 of 2 rows. Check the outcome reward")


# -- lengths -----------------------------------------------------------------------------------------------------------


def check_lengths(
    positions: int | None, train: int, held_out: int, completion: int, evaluated: int = 0, too_long: int = 0, replies: int = 0
) -> Check:
    config = SimpleNamespace(max_position_embeddings=positions)
    run: Any = SimpleNamespace(
        policy=SimpleNamespace(model=SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: config))),
        recipe=SimpleNamespace(evaluation=SimpleNamespace(max_completion_tokens=evaluated)),
        sampling=Sampling(4, 1.0, completion, (), max_reply_tokens=replies),
    )

    def prompts(length: int) -> list[Prompt]:
        return [Prompt(0, "q", {}, (1,)), Prompt(1, "q", {}, (1,) * length)]

    reports = {"prompts": PromptReport(2, 2, too_long, train, 1.0, 512)}
    return check_prompt_lengths(run, EncodedData(prompts(train), {"dev": prompts(held_out)}, [], [], reports))


def test_prompt_and_completion_may_fill_the_positions_of_the_model():
    assert check_lengths(16, train=6, held_out=6, completion=10).level == "ok"
    assert check_lengths(None, train=6, held_out=6, completion=10**9).level == "ok"
    assert check_lengths(16, train=6, held_out=6, completion=10, too_long=1).level == "warning"
    for found, text in (
        (check_lengths(15, 6, 5, 10), "prompts: prompts of up to 6 tokens and sampling.max_completion_tokens = 10 need 16"),
        (check_lengths(15, 5, 6, 10), "dev: prompts of up to 6 tokens and sampling.max_completion_tokens = 10 need 16"),
        (check_lengths(15, 6, 6, 9, evaluated=10), "dev: prompts of up to 6 tokens and evaluation.max_completion_tokens = 10"),
    ):
        assert (found.level, found.blocks) == ("failure", True)
        assert text in found.text
        assert "the model has 15" in found.text
    assert check_lengths(16, train=5, held_out=5, completion=10, replies=1).level == "ok"
    assert " and 2 for replies of the environment need 17 positions" in check_lengths(16, 5, 5, 10, replies=2).text
    assert check_lengths(15, 6, 7, 9, evaluated=8).level == "ok"  # the limit of evaluation replaces that of training
