"""`cohort evaluate`: a run, its start, its best and any checkpoint, a model folder, and two of them in pairs."""

from __future__ import annotations

import json
import re

import pytest

from session_tools import fork_server, rows_of, summary_of, write_recipe


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """(fork server, recipe, run): three steps, best by evaluation at step 1 or 2, all checkpoints kept."""
    folder = tmp_path_factory.mktemp("evaluate")
    recipe = write_recipe(
        folder / "tiny.toml",
        **{"train.num_steps": 3, "checkpoints.keep": 9, "evaluation.every_steps": 1, "evaluation.every_problems": 8},
    )
    with fork_server(folder) as server:
        child = server.run("train", recipe, "name=run")
        assert child.wait() == 0, child.output
        yield server, recipe, folder / "runs" / "run"


def evaluated(server, *words: object) -> tuple[str, dict]:
    output = server.folder / "numbers.json"
    child = server.run("evaluate", *words, "--output", output)
    assert child.wait() == 0, child.output
    assert "Traceback" not in child.output
    return child.output, json.loads(output.read_text())


def test_a_run_gives_the_numbers_of_its_own_final_evaluation(world):
    """Same weights, same problems, same keyed noise: the command repeats summary.json to the last digit."""
    server, _, run = world
    printed, document = evaluated(server, run)
    numbers = document[str(run)]["sets"]["held_out"]
    for what, value in summary_of(run)["eval"]["after"].items():
        assert numbers[what] == value, what
    for what in ("pass@1", "pass@8", "maj@8", "mean@8", "greedy", "reward", "truncated", "95 % interval"):
        assert what in printed


def test_start_is_the_evaluation_before(world):
    server, _, run = world
    _, document = evaluated(server, run, "--checkpoint", "start")
    assert document[f"{run}@start"]["sets"]["held_out"]["pass@1"] == summary_of(run)["eval"]["before"]["pass@1"]


def test_a_named_checkpoint_and_the_best_one(world):
    server, _, run = world
    during = {row["step"]: row["eval/held_out/reward"] for row in rows_of(run) if "eval/held_out/reward" in row}
    _, document = evaluated(server, run, "--checkpoint", "step-1")
    assert document[f"{run}@step-1"]["sets"]["held_out"]["reward"]["value"] == during[1]
    _, document = evaluated(server, run, "--checkpoint", "best")
    assert document[f"{run}@best"]["sets"]["held_out"]["reward"]["value"] == max(during.values())


def test_two_targets_are_compared_in_pairs(world):
    """A model against itself: exactly no difference; the line names both, the interval and the number of problems."""
    server, recipe, run = world
    printed, document = evaluated(server, run, run / "model", "--recipe", recipe)
    (paired,) = document["paired"].values()
    assert paired["held_out"]["pass@1"]["difference"] == 0.0
    assert paired["held_out"]["pass@1"]["p_value"] == 1.0
    assert re.search(
        r"held_out pass@1: .*model against .*run \+0\.0 points \[[-+\d., ]+\], p = 1 on \d+ paired problems", printed
    )


def test_a_model_folder_with_a_recipe_and_overrides(world):
    server, recipe, run = world
    _, document = evaluated(
        server, run / "model", "--recipe", recipe, "--set", "evaluation.samples=4", "--set", "evaluation.top_k=1"
    )
    numbers = document[str(run / "model")]["sets"]["held_out"]
    assert "pass@4" in numbers
    assert numbers["pass@1"]["value"] == numbers["pass@4"]["value"]  # top-k 1 draws the same completion four times
    assert numbers["pass@1"]["value"] == numbers["greedy"]["value"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{run}", "--checkpoint", "step-99"], "has no checkpoint 'step-99'; it has: step-0, step-1, step-2, step-3."),
        (["{run}/model"], "name the problems and rewards with --recipe"),
        (["/nowhere", "--recipe", "{recipe}"], "cannot load '/nowhere'"),
        (["{run}", "--set", "evaluation.samples=0"], "has no evaluation"),
        (["{run}", "--set", "evaluation.sample=2"], "did you mean 'samples'"),
    ],
)
def test_mistakes_are_answered_in_words(world, words, said):
    server, recipe, run = world
    child = server.run("evaluate", *[word.format(run=run, recipe=recipe) for word in words])
    assert child.wait() == 1
    assert "error: " in child.output
    assert said in child.output
    assert "Traceback" not in child.output


def test_a_damaged_checkpoint_is_refused(world):
    server, _, run = world
    file = run / "checkpoints" / "step-2" / "weights.safetensors"
    data = bytearray(file.read_bytes())
    data[-50] ^= 4
    file.write_bytes(data)
    child = server.run("evaluate", run, "--checkpoint", "step-2")
    assert child.wait() == 1
    assert "step-2: weights.safetensors does not match its checksum" in child.output
