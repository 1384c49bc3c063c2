"""Rewards given to `cohort.train` and `cohort.resume`, and how they reach the recipe and the runner."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import test_rewards_zoo as zoo

import cohort
from cohort import api
from cohort.errors import RecipeError, RewardError
from cohort.recipe.rules import name_reward
from cohort.rewards.runner import RewardRunner
from cohort.types import Completion, Prompt

ROWS = [{"prompt": "a", "answer": "b"}]


@pytest.fixture
def started(monkeypatch):
    """(recipe, materials) of the run that would have started."""
    calls = []
    monkeypatch.setattr(api, "start_session", lambda recipe, materials: calls.append((recipe, materials)))
    return calls


def score_parts(recipe, materials) -> dict[str, float | None]:
    with RewardRunner.from_recipe(recipe.rewards, materials.functions) as runner:
        outcome = runner.score([Prompt(0, "q", {}, (1,))], [Completion((1,), (0.0,), "stop", "x")], step=1, num_steps=1)
    return dict(outcome.outcomes[0].parts)


def test_the_name_of_an_entry_wins_over_that_of_its_function(started):
    cohort.train("scratch", prompts=ROWS, rewards=[{"function": zoo.good, "name": "mine", "weight": 2.0}, zoo.none_on_bad])
    recipe, materials = started[0]
    assert [name_reward(part) for part in recipe.rewards] == ["mine", "none_on_bad"]
    assert [part.function for part in recipe.rewards] == ["test_rewards_zoo:good", "test_rewards_zoo:none_on_bad"]
    assert recipe.rewards[0].weight == 2.0
    assert score_parts(recipe, materials) == {"mine": 1.0, "none_on_bad": 1.0}


def test_two_lambdas_with_names_of_their_own(started):
    rewards = [
        {"function": lambda completions, **_: [0.25] * len(completions), "name": "quarter"},
        {"function": lambda completions, **_: [0.5] * len(completions), "name": "half"},
    ]
    cohort.train("scratch", prompts=ROWS, rewards=rewards)
    recipe, materials = started[0]
    assert [part.function for part in recipe.rewards] == ["python:quarter", "python:half"]
    assert score_parts(recipe, materials) == {"quarter": 0.25, "half": 0.5}


def test_one_function_twice_with_other_arguments(started):
    entries = [{"function": zoo.with_extract, "name": name, "args": {"suffix": name}} for name in ("a", "b")]
    cohort.train("scratch", prompts=ROWS, rewards=entries)
    assert score_parts(*started[0]) == {"a": 1.0, "b": 1.0}


def test_two_lambdas_without_names_are_refused_and_not_mixed_up(started):
    with pytest.raises(RecipeError, match="two parts share a name"):
        cohort.train("scratch", prompts=ROWS, rewards=[lambda completions: [0.0], lambda completions: [1.0]])


@pytest.mark.parametrize("rewards", [3, 1.5, b"math_answer", object()])
def test_invalid_rewards_get_a_message(rewards, started):
    with pytest.raises(RecipeError, match=r"^rewards: give a function, the name of a built-in reward, or a dict"):
        cohort.train("scratch", prompts=ROWS, rewards=rewards)


def test_nonsense_among_rewards_is_named_by_its_place(started):
    with pytest.raises(RecipeError, match=r"^rewards\.1: give a function.*; got 3\.$"):
        cohort.train("scratch", prompts=ROWS, rewards=[zoo.good, 3])
    with pytest.raises(RecipeError, match=r"rewards"):
        cohort.train("scratch", prompts=ROWS, rewards=[])
    with pytest.raises(RecipeError, match=r"^rewards\.0\.function"):
        cohort.train("scratch", prompts=ROWS, rewards=[{"name": "no function"}])
    with pytest.raises(RecipeError, match=r"^rewards\.0\.function"):
        cohort.train("scratch", prompts=ROWS, rewards={"function": 3})


def test_every_form_of_rewards(started):
    for rewards in (zoo.good, "math_answer", {"function": "math_answer"}, [zoo.good], (zoo.good,), iter([zoo.good])):
        cohort.train("scratch", prompts=ROWS, rewards=rewards)
    functions = [recipe.rewards[0].function for recipe, _ in started]
    assert functions == ["test_rewards_zoo:good", "math_answer", "math_answer", *["test_rewards_zoo:good"] * 3]
    cohort.train("scratch", prompts=ROWS, rewards=functools.partial(zoo.good, extra=1))
    assert started[-1][0].rewards[0].function == "python:partial"


def test_built_in_recipes_go_by_name_as_on_the_command_line(started, tmp_path, monkeypatch):
    from cohort.recipe.file import find_recipe

    cohort.train(recipe="column_addition", seed=5)
    assert started[-1][0] == find_recipe("column_addition", ["seed=5"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "recipe.toml").write_text("seed = 7\n")
    for recipe in ("mine", tmp_path / "mine", "mine/recipe.toml"):
        cohort.train(recipe=recipe)
        assert started[-1][0].seed == 7
    with pytest.raises(RecipeError, match="neither a file nor a built-in recipe; did you mean 'column_addition'"):
        cohort.train(recipe="colum_addition")


def test_functions_are_handed_in_again_on_resume(monkeypatch):
    given = []
    monkeypatch.setattr(api, "resume_session", lambda run, materials: given.append(materials.functions))

    def closure(completions):
        return [1.0]

    for rewards in (closure, [closure], {"function": closure}):
        cohort.resume("run", rewards=rewards)
        assert given[-1] == {"python:closure": closure}
    cohort.resume("run", rewards=[{"function": closure, "name": "mine"}])
    assert given[-1] == {"python:mine": closure}
    cohort.resume("run", rewards=[zoo.good])  # a notebook cell that was moved into a module since
    assert given[-1] == {"test_rewards_zoo:good": zoo.good, "python:good": zoo.good}
    with pytest.raises(RecipeError, match=r"^rewards: "):
        cohort.resume("run", rewards=3)


def test_a_missing_function_on_resume_gets_a_message(started):
    cohort.train("scratch", prompts=ROWS, rewards=[zoo.good, {"function": lambda completions: [1.0], "name": "mine"}])
    with pytest.raises(RewardError) as caught:
        RewardRunner.from_recipe(started[0][0].rewards, {})
    message = str(caught.value)
    assert message.startswith("rewards.1.function: 'python:mine' ")
    assert "Use cohort.resume(run, rewards=[function])" in message
    assert 'rewards=[{"function": function, "name": "mine"}]' in message


BEFORE_TORCH = """
import sys
import cohort
from cohort.rewards.runner import RewardRunner

def start(self):
    print("torch" in sys.modules)
    raise SystemExit

RewardRunner.start = start
cohort.train("scratch", prompts=[{"prompt": "a", "answer": "b"}], rewards=[lambda completions: [1.0]])
"""


def test_reward_workers_start_before_torch_is_imported(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(zoo.__file__).parent)}
    command = [sys.executable, "-c", BEFORE_TORCH]
    output = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=environment).stdout
    assert output.splitlines()[-1] == "False"
