"""A run that ends before its last step: on a condition, on an alarm, and never as a success when nothing was scored."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

import cohort
from cohort import loop, session
from cohort.errors import RecipeError, RewardError
from cohort.observe.diagnosis.checks import diagnose
from cohort.observe.early_stop import check_conditions, find_reason_to_stop, name_absent_metrics
from cohort.observe.run_folder import RunFolder
from cohort.recipe.file import load_recipe
from cohort.recipe.values import Condition, Materials, parse_conditions
from session_tools import FAST, differences, digit_share, rows_of, run_with, summary_of, tiny


def recipe_with(condition: str, **words: Any) -> Any:
    return load_recipe(values={"train.stop_when": condition, "evaluation.every_steps": 5, "evaluation.samples": 8} | words)


# -- words -------------------------------------------------------------------------------------------------------------


def test_conditions_are_read_as_they_are_written():
    assert parse_conditions("") == []
    assert parse_conditions("a/b>=0.95") == [[Condition("a/b", ">=", 0.95)]]
    assert parse_conditions(" a/b > 1 and c/d <= -2e-3  or e/f == 0 ") == [
        [Condition("a/b", ">", 1.0), Condition("c/d", "<=", -0.002)],
        [Condition("e/f", "==", 0.0)],
    ]
    assert parse_conditions("a/b ≥ 1 and c/d≤2") == [[Condition("a/b", ">=", 1.0), Condition("c/d", "<=", 2.0)]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("eval/pass@1", "'eval/pass@1' is not a condition; write a metric, a sign and a number"),
        ("eval/pass@1 => 0.9", "is not a condition"),
        ("eval/pass@1 >= 95%", "'95%' is not a number; write shares like 0.95"),
        ("eval/pass@1 >= 95 %", "'95 %' is not a number; write shares like 0.95"),
        ("(eval/pass@1 >= 0.9)", "conditions have no brackets, and `and` binds before `or`"),
        ("eval/pass@1 >= nan", "'nan' cannot be a limit"),
        ("eval/pass@1 >= 0.9 and", "is not a condition"),
        ("eval/pass@1 >= 0.9, reward/mean > 1", "is no"),
        ("0.9 <= eval/pass@1", "'eval/pass@1' is not a number"),
    ],
)
def test_what_is_no_condition_is_refused_by_name(text, said):
    with pytest.raises(RecipeError, match=r"^train\.stop_when: ") as raised:
        recipe_with(text)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("metric", "words", "said"),
    [
        ("eval/pass@1", {}, ""),
        ("eval/held_out/pass@8", {}, ""),
        ("eval/maj@8", {}, ""),
        ("eval/reward", {}, ""),
        ("reward/success", {}, ""),
        ("reward/math_answer/mean", {}, ""),
        ("reward/math_answer/whatever_it_logs", {}, ""),
        ("loss/kl_per_completion", {}, ""),
        ("eval/pass@3", {}, "evaluation does not measure it; did you mean"),
        ("eval/mean@4", {}, "did you mean 'eval/held_out/mean@8'?"),
        ("eval/passs@1", {}, "no metric has this name; did you mean 'eval/held_out/pass@1'?"),
        ("reward/sucess", {}, "no metric has this name; did you mean 'reward/success'?"),
        ("reward/math_anser/mean", {}, "no reward part 'math_anser'; did you mean 'math_answer'?"),
        ("pass@1", {}, "no metric has this name; did you mean 'eval/held_out/pass@1'?"),
        ("epoch", {}, "did you mean 'rollout/epoch'?"),
        ("steps", {}, "set train.num_steps"),
        ("time/steps", {}, "no metric has this name. docs/metrics.md lists all"),
        ("eval/test/pass@1", {}, "training evaluates only 'held_out'; write eval/held_out/pass@1"),
        ("eval/greedy", {}, "only before and after training"),
        ("time/step", {}, "times vary between machines"),
        ("perf/tokens_per_second", {}, "times vary"),
        ("reward/math_answer/seconds", {}, "times vary"),
        ("eval/pass@1", {"evaluation.every_steps": 0}, "Set evaluation.every_steps"),
        ("eval/pass@1", {"evaluation.samples": 0}, "evaluation.samples is 0"),
    ],
)
def test_a_metric_that_no_step_can_have_is_refused_before_the_run(metric, words, said):
    recipe = recipe_with(f"{metric} >= 0.5", **words)
    if not said:
        check_conditions(recipe)
        return
    with pytest.raises(RecipeError) as raised:
        check_conditions(recipe)
    assert str(raised.value).startswith(f"train.stop_when: {metric}: ")
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("eval/pass@1 >= 95", "so >= 95 is never met; write 95 % as 0.95."),
        ("reward/success < 50", "so < 50 is always met; write 50 % as 0.5."),
        ("eval/pass@8 > 1", "so > 1 is never met."),
        ("eval/pass@8 >= 1", ""),
        ("reward/mean > 95 and loss/kl < 5 and rollout/length_mean > 100", ""),
    ],
)
def test_a_share_is_not_held_against_per_cent(condition, said):
    recipe = recipe_with(condition)
    if not said:
        check_conditions(recipe)
        return
    with pytest.raises(RecipeError, match="it is a share from 0 to 1") as raised:
        check_conditions(recipe)
    assert said in str(raised.value)


def test_a_condition_is_held_against_the_row_of_its_step(tmp_path):
    recipe = recipe_with("eval/pass@1 >= 0.9 and reward/success > 0.5 or loss/kl > 2", num_steps=20)
    folder = RunFolder(tmp_path)
    row = {"step": 7, "eval/held_out/pass@1": 0.9, "reward/success": 0.6, "loss/kl": 2.0}
    assert find_reason_to_stop(recipe, folder, row) == (
        "stopped early, at step 7 of 20: eval/held_out/pass@1 is 0.9 and reward/success is 0.6 "
        '(train.stop_when = "eval/pass@1 >= 0.9 and reward/success > 0.5 or loss/kl > 2")'
    )
    assert find_reason_to_stop(recipe, folder, row | {"reward/success": 0.5}) == ""
    assert find_reason_to_stop(recipe, folder, {"step": 7, "loss/kl": float("nan")}) == ""
    assert "loss/kl is 3" in find_reason_to_stop(recipe, folder, {"step": 7, "loss/kl": 3.0})
    assert find_reason_to_stop(recipe, folder, row | {"step": 20}) == "", "the last step ends the run anyway"


def test_a_metric_that_the_first_row_lacks_is_mentioned():
    """A name that only a function knows, or a choice that this run does not have, cannot be refused before."""
    recipe = recipe_with("loss/kl > 1 or reward/math_answer/typo > 1 or eval/pass@1 > 1")
    assert list(name_absent_metrics(recipe, {"step": 1, "loss/kl": 0.0})) == [
        "train.stop_when: step 1 has no reward/math_answer/typo; the condition cannot be met while the metric is missing"
    ]
    assert list(name_absent_metrics(recipe, {"step": 2})) == []
    assert ["eval/held_out/pass@1" in text for text in name_absent_metrics(recipe, {"step": 5})] == [True]


# -- runs --------------------------------------------------------------------------------------------------------------

STOPS: dict[str, Any] = {"train.num_steps": 6, "train.stop_when": "optim/policy_version >= 3"}


def test_a_run_that_meets_its_condition_is_finished_early_and_whole(tmp_path, monkeypatch, capsys):
    """And one that is killed before, inside of that very step, ends at the same one with the same bits."""
    evaluated = STOPS | {"evaluation.samples": 2, "evaluation.max_problems": 4, "evaluation.every_steps": 2}
    rewards = [{"function": "session_tools:digit_share", "name": "reward"}]
    recipe = tiny(tmp_path, "whole", **FAST | evaluated | {"rewards": rewards})
    whole = session.start(recipe)
    assert whole.status == "finished"
    assert [row["step"] for row in rows_of(whole.folder)] == [1, 2, 3]
    assert [(row["label"], row["step"]) for row in rows_of(whole.folder, "evaluations.jsonl")] == [
        ("before", 0),
        ("during", 2),
        ("after", 3),
    ]
    reason = 'stopped early, at step 3 of 6: optim/policy_version is 3 (train.stop_when = "optim/policy_version >= 3")'
    assert summary_of(whole.folder)["stopped"] == reason
    assert whole.model.is_dir()
    assert "optim/policy_version is 3" in (whole.folder / "report.html").read_text(encoding="utf-8")
    assert "stopped early" in repr(whole)
    assert session.resume(whole.folder).summary["steps"] == 3, "it is done"
    assert RunFolder(whole.folder).describe_ignored_edit(whole.summary) == f"It {reason}. A stopped run cannot be extended."

    with monkeypatch.context() as patch:
        observe = loop.observe_step

        def observing(parts: Any, state: Any, watch: Any) -> None:
            observe(parts, state, watch)
            if state.step + 1 == 3:
                os.kill(os.getpid(), signal.SIGTERM)

        patch.setattr(loop, "observe_step", observing)
        stopped = session.start(recipe.model_copy(update={"name": "stopped"}))
    assert stopped.status == "interrupted"
    assert session.resume(stopped.folder).status == "finished"
    assert differences(stopped.folder, whole.folder) == []


def test_an_alarm_ends_a_run_that_asks_for_it(tmp_path):
    def wrong(completions: list[str], **columns: Any) -> list[float]:
        return [0.0 for _ in completions]

    settings = {"train.num_steps": 8, "train.prompts_per_step": 2, "train.on_alarm": "stop"}
    result = run_with(wrong, tmp_path, **settings)
    assert result.status == "finished"
    assert result.summary["steps"] == 5, "a pattern takes five steps"
    alarms = [finding.what for finding in diagnose(rows_of(result.folder)) if finding.level == "alarm"]
    assert result.summary["stopped"].startswith("stopped early, at step 5 of 8: ")
    assert any(what in result.summary["stopped"] for what in alarms)
    assert 'train.on_alarm = "stop"' in result.summary["stopped"]


@pytest.mark.parametrize(("settings", "steps"), [({"train.num_steps": 2}, 2), ({"train.num_steps": 9}, 5)])
def test_a_run_of_which_nothing_is_scored_does_not_end_well(tmp_path, settings, steps):
    """It stops after five steps at the latest, with words and an exit code; mended, it goes on."""
    answers: list[float | None] = [None]

    def silent(completions: list[str], **columns: Any) -> list[float | None]:
        return [answers[0] for _ in completions]

    small = {"train.prompts_per_step": 2, "train.group_size": 2}
    with pytest.raises(RewardError, match=rf"no completion of the first {steps} steps has a score: 'reward' returned None"):
        run_with(silent, tmp_path, **small | settings)
    assert (summary_of(tmp_path / "run")["status"], summary_of(tmp_path / "run")["steps"]) == ("failed", steps)
    if steps < settings["train.num_steps"]:
        answers[0] = 1.0
        mended = session.resume(tmp_path / "run", Materials(None, {"python:reward": silent}))
        assert mended.status == "finished"


def test_a_reward_that_abstains_on_most_is_still_a_reward(tmp_path):
    def picky(completions: list[str], **columns: Any) -> list[float | None]:
        shares = digit_share(completions)
        return [shares[0], *(None for _ in completions[1:])]

    assert run_with(picky, tmp_path).status == "finished"


def test_the_exit_code_of_a_silent_run_says_so(tmp_path):
    """The status that the command line turns into its exit code."""
    from cohort.tools.commands import EXIT_CODES

    with pytest.raises(RewardError):
        cohort.train(
            prompts=[{"prompt": f"{number}+1="} for number in range(20)],
            rewards=lambda completions, **columns: [None] * len(completions),
            model="scratch",
            num_steps=1,
            runs_folder=str(tmp_path),
            name="run",
            monitors={"console": False},
            evaluation={"samples": 0},
            prompts_per_step=2,
            group_size=2,
            **{"model.scratch.hidden_size": 16, "model.scratch.num_layers": 1, "sampling.max_completion_tokens": 4},
        )
    assert EXIT_CODES[summary_of(tmp_path / "run")["status"]] == 1
