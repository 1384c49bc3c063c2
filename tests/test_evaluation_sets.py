"""Evaluation sets with rewards of their own, from a recipe and from Python: scored, checked, resumed, reported; and the best checkpoint."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tomli_w

import cohort
from cohort.errors import Interrupted, RecipeError, RunError
from cohort.observe.early_stop import check_best, check_conditions, list_training_sets, read_best
from cohort.recipe.file import build_recipe, load_recipe
from session_tools import PROBLEMS, fork_server, rows_of, summary_of, tiny, train_tiny, tree

RIGHT, WRONG = ({"function": f"session_tools:always_{how}", "name": how} for how in ("right", "wrong"))
SETS: dict[str, Any] = {
    "near": PROBLEMS | {"split": "held_out"},
    "far": PROBLEMS | {"split": "held_out", "rewards": [{"function": "session_tools:always_right", "weight": 3.0}]},
}
FAST: dict[str, Any] = {
    "cold_start.num_steps": 0,
    "train.num_steps": 2,
    "evaluation.every_steps": 1,
    "evaluation.max_problems": 6,
    "evaluation.sets": SETS,
    "rewards": [WRONG],
}


# -- recipes -----------------------------------------------------------------------------------------------------------


def test_a_set_of_a_recipe_is_scored_by_its_own_rewards(tmp_path):
    """Training pays nothing, the set pays 3.0: only its own reward can give it that."""
    run = train_tiny(tmp_path, **FAST)
    numbers = run.summary["eval"]["sets"]
    assert numbers["near"]["after"]["pass@1"]["value"] == numbers["near"]["after"]["reward"]["value"] == 0.0
    assert numbers["far"]["before"]["pass@1"]["value"] == numbers["far"]["after"]["pass@1"]["value"] == 1.0
    assert numbers["far"]["after"]["reward"]["value"] == 3.0
    assert numbers["far"]["after"]["greedy"]["value"] == 1.0
    assert "far" in (run.folder / "report.html").read_text()
    kept = load_recipe(run.folder / "recipe.toml").evaluation.sets
    assert [reward.weight for reward in kept["far"].rewards] == [3.0]
    assert kept["near"].rewards == []
    again = cohort.evaluate(run)
    assert (again.sets["near"]["reward"].value, again.sets["far"]["reward"].value) == (0.0, 3.0)


def test_the_command_line_reaches_into_the_rewards_of_a_set(tmp_path):
    file = tmp_path / "recipe.toml"
    file.write_text(tomli_w.dumps(tree(**FAST)))
    recipe = load_recipe(file, ["evaluation.sets.far.rewards.0.weight=5"])
    assert recipe.evaluation.sets["far"].rewards[0].weight == 5.0


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ([RIGHT, RIGHT], r"evaluation\.sets\.far\.rewards: two parts share a name"),
        (
            [RIGHT | {"outcome": True}, WRONG | {"outcome": True}],
            r"evaluation\.sets\.far\.rewards: outcome = true on more than one",
        ),
        ([{"funktion": "math_answer"}], r"'funktion' in \[evaluation\.sets\.far\.rewards\.0\]; did you mean 'function'"),
        ("math_answer", r"evaluation\.sets\.far\.rewards: this is a list of tables"),
        (["math_answer"], r"evaluation\.sets\.far\.rewards\.0: each entry is a table"),
    ],
)
def test_rewards_of_a_set_that_cannot_be_are_refused_by_their_place(rewards, message):
    with pytest.raises(RecipeError, match=message):
        build_recipe(tree(**FAST | {"evaluation.sets": {"far": SETS["far"] | {"rewards": rewards}}}))


def test_a_function_of_a_set_that_cannot_be_imported_is_named_by_its_place(tmp_path):
    sets = {"far": SETS["far"] | {"rewards": [{"function": "session_tools:no_such"}]}}
    with pytest.raises(cohort.CohortError, match=r"evaluation\.sets\.far\.rewards\.0\.function"):
        train_tiny(tmp_path, **FAST | {"evaluation.sets": sets})
    assert not list(tmp_path.iterdir())


def test_each_set_is_checked_against_the_columns_and_golds_of_its_own_rewards(tmp_path):
    """The training reward needs no column. The set's own needs `solution`, which no row has, or pays no gold."""
    sets = {"far": SETS["far"] | {"rewards": [{"function": "math_answer", "columns": {"answer": "solution"}}]}}
    with pytest.raises(RunError, match=r"evaluation set far: .*solution"):
        train_tiny(tmp_path, **FAST | {"evaluation.sets": sets})
    with fork_server(tmp_path) as server:
        file = tmp_path / "recipe.toml"
        file.write_text(
            tomli_w.dumps(tree(**FAST | {"rewards": [RIGHT], "evaluation.sets": {"far": SETS["far"] | {"rewards": [WRONG]}}}))
        )
        child = server.run("doctor", file)
        assert child.wait() == 1, child.output
    assert "64 of 64 reference answers score as success" in child.output
    assert "0 of 6 reference answers of far score as success" in child.output


# -- from Python -------------------------------------------------------------------------------------------------------

ROWS = [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(8)]
FAR = [{"prompt": f"{n}+9=", "total": str(n + 9)} for n in range(6)]
WORDS: dict[str, Any] = {
    "model.scratch": {"hidden_size": 16, "intermediate_size": 24, "num_layers": 1, "num_heads": 2, "max_positions": 32},
    "group_size": 4,
    "num_steps": 2,
    "prompts_per_step": 4,
    "max_completion_tokens": 6,
    "evaluation": {"samples": 2, "resamples": 100},
    "monitors": {"console": False},
}


def test_rewards_of_a_set_from_python_are_found_again_on_resume(tmp_path, monkeypatch):
    """A closure for training and one for the set; after an interrupt both are handed in again, each where it was."""
    from cohort import loop

    def correct(completions, answer):
        return [0.0] * len(completions)

    def total_is(completions, total):
        return [1.0] * len(completions)

    monkeypatch.chdir(tmp_path)
    sets = {"near": [{"prompt": "1+2=", "answer": "3"}], "far": {"prompts": FAR, "rewards": total_is}}
    with monkeypatch.context() as patch:
        patch.setattr(loop, "observe_step", lambda *_: (_ for _ in ()).throw(Interrupted("SIGTERM")))
        run = cohort.train(None, ROWS, [correct], evaluate_on=sets, name="run", **WORDS)
    assert run.status == "interrupted"
    with pytest.raises(cohort.CohortError, match=r"evaluation\.sets\.far\.rewards\.0.*python:total_is"):
        cohort.resume(run, rewards=[correct])
    run = cohort.resume(run, rewards=[correct], evaluate_on={"far": {"rewards": [total_is]}})
    assert run.status == "finished"
    after = {name: sides["after"]["pass@1"]["value"] for name, sides in summary_of(run.folder)["eval"]["sets"].items()}
    assert after == {"near": 0.0, "far": 1.0}


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ({"far": {"rewards": [len]}}, r'evaluate_on\.far: "prompts" is missing'),
        (
            {"far": {"prompt": ["a"], "answer": ["b"]}},
            r'evaluate_on\.far: give rows, a path, or \{"prompts": \.\.\., "rewards"',
        ),
        ({"far": {"prompts": FAR, "reward": len}}, r"evaluate_on\.far: give rows.*; got the key 'reward'\."),
        ({"far": {"prompts": None, "rewards": len}}, r"evaluate_on\.far: give rows.*; got NoneType as prompts\."),
        ({"prompts": FAR, "rewards": [len]}, r'evaluate_on: give the set a name: evaluate_on=\{"test"'),
        ({"far": {"prompts": FAR, "rewards": 3}}, r"evaluate_on\.far\.rewards: give a function"),
        ({"far": {"prompts": FAR, "rewards": [{"function": "math_answer", "wait": 1}]}}, r"evaluation\.sets\.far\.rewards\.0"),
        ({"far": {"prompts": FAR, "rewards": [lambda completions: [1.0]]}}, r"two parts share a name \(lambda\)"),
    ],
)
def test_sets_from_python_that_cannot_be_are_refused(sets, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match=message):
        cohort.train(None, ROWS, [lambda completions: [0.0]], evaluate_on=sets, **WORDS)
    assert not list(tmp_path.iterdir())


# -- the best checkpoint -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("best", "expected"),
    [
        (True, ("near", "pass@1")),
        ("far/reward", ("far", "reward")),
        ("reward", ("near", "reward")),
        ("far/pass@8", ("far", "pass@8")),
    ],
)
def test_best_names_a_set_and_a_measure(tmp_path, best, expected):
    recipe = tiny(tmp_path, **FAST | {"checkpoints.best": best})
    check_best(recipe)
    assert read_best(recipe) == expected
    assert list_training_sets(recipe) == list(dict.fromkeys(["near", expected[0]]))
    stopping = tiny(tmp_path, **FAST | {"checkpoints.best": best, "train.stop_when": f"eval/{expected[0]}/pass@1 >= 0.9"})
    check_conditions(stopping)


@pytest.mark.parametrize("best", ["far", "nowhere/reward", "near/greedy", "near/pass@3", "far/loss"])
def test_a_best_that_is_not_measured_is_refused(tmp_path, best):
    with pytest.raises(
        RecipeError, match=r"checkpoints\.best: .* sets: near, far; measures: reward, pass@1, pass@2, pass@4, pass@8"
    ):
        train_tiny(tmp_path, **FAST | {"checkpoints.best": best})


def test_the_best_checkpoint_follows_the_named_set(tmp_path):
    run = train_tiny(tmp_path, **FAST | {"checkpoints.best": "far/pass@1"})
    assert {"eval/near/pass@1", "eval/far/pass@1"} <= rows_of(run.folder)[0].keys()
    best = json.loads((run.folder / "checkpoints" / "best.json").read_text())
    assert best == {"checkpoint": "step-1", "set": "far", "measure": "pass@1", "value": 1.0}
    assert run.summary["best"] == {"step": 1, "set": "far", "measure": "pass@1", "value": 1.0}
