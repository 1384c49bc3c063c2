"""`cohort evaluate`: a run, its start, its best and any checkpoint, a model folder, and two of them in pairs."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import pytest
from rich.console import Console

import cohort
from cohort.data.prompts import split_held_out
from cohort.errors import RunError
from cohort.evaluation.estimators import Estimate
from cohort.evaluation.evaluate import NO_ANSWER, Evaluation, compare
from cohort.observe.run_folder import RunFolder
from cohort.recipe.file import build_recipe
from cohort.recipe.schema import Recipe
from cohort.tools.evaluate import (
    Problems,
    Target,
    TargetResult,
    print_comparison,
    print_table,
    refuse_busy_servers,
    refuse_unwritable,
    select_model_overrides,
)
from session_tools import fork_server, rows_of, summary_of, tree, write_recipe


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
    scores = [*during.values(), summary_of(run)["eval"]["after"]["reward"]["value"]]
    _, document = evaluated(server, run, "--checkpoint", "best")
    assert document[f"{run}@best"]["sets"]["held_out"]["reward"]["value"] == max(scores)


def test_two_targets_are_compared_in_pairs(world):
    """A model against itself: exactly no difference; the line names both, the interval and the number of problems."""
    server, recipe, run = world
    printed, document = evaluated(server, run, run / "model", "--recipe", recipe)
    (paired,) = document["paired"].values()
    assert paired["held_out"]["pass@1"]["difference"] == 0.0
    assert paired["held_out"]["pass@1"]["p_value"] == 1.0
    assert re.search(
        r"held_out pass@1: .*model against .*run \+0\.0 points \(95 % interval -\S+ to \+\S+, paired over 8 problems, p = 1\): "
        r"no clear difference",
        printed,
    )


def test_runs_with_different_seeds_are_compared_on_the_problems_of_the_first(world):
    """Row 0 differs between the runs: a difference is only meaningful on the same problems."""
    server, recipe, run = world
    other = server.folder / "runs" / "other"
    child = server.run("train", recipe, "name=other", "seed=1", "train.num_steps=1", "evaluation.samples=4")
    assert child.wait() == 0, child.output
    stored = [rows_of(folder, "evaluations.jsonl")[-1]["per_problem"]["held_out"]["problem"] for folder in (run, other)]
    assert set(stored[0]) != set(stored[1])

    printed, document = evaluated(server, run, other)
    assert f"all targets are evaluated on the problems of {run}, with its rewards, settings and seed" in printed
    verdicts = [document[str(folder)]["per_problem"]["held_out"] for folder in (run, other)]
    assert verdicts[0]["problem"] == verdicts[1]["problem"] == stored[0]
    assert all(len(row) == 8 for row in verdicts[1]["success"])  # the first one's samples too
    assert document[str(run)]["sets"]["held_out"]["pass@1"] == summary_of(run)["eval"]["after"]["pass@1"]
    paired = document["paired"][f"{other} against {run}"]["held_out"]["pass@1"]
    assert paired["problems"] == len(stored[0])
    rates = [document[str(folder)]["sets"]["held_out"]["pass@1"]["value"] for folder in (other, run)]
    assert paired["difference"] == pytest.approx(rates[0] - rates[1])


def test_a_start_from_scratch_keeps_its_own_seed(world, tmp_path):
    """Random starting weights depend on the run's own seed and rows, not on the problems of the evaluation."""
    settings = {"train.num_steps": 1, "cold_start.num_steps": 0, "optimizer.learning_rate": 1e-30}  # moves no weight
    recipe = write_recipe(tmp_path / "tiny.toml", **settings, rewards=[{"function": "session_tools:digit_share"}])
    server, _, _ = world
    for seed in (1, 2):
        child = server.run("train", recipe, f"name=run-{seed}", f"seed={seed}")
        assert child.wait() == 0, child.output
    targets = ["runs/run-1", "runs/run-2", "runs/run-2/model"]
    _, document = evaluated(server, *targets, "--checkpoint", "start")
    one, two, model = (
        document[name]["sets"]["held_out"]["reward"] for name in ("runs/run-1@start", "runs/run-2@start", "runs/run-2/model")
    )
    assert two == model
    assert two != one


def test_a_model_after_a_run_needs_no_recipe(world):
    server, _, run = world
    _, document = evaluated(server, run, run / "model")
    (paired,) = document["paired"].values()
    assert paired["held_out"]["pass@1"]["difference"] == 0.0


def test_a_run_from_python_rows_is_evaluated_on_the_rows_it_kept(world):
    """And for two of them with different splits, problems that the second was trained on are counted and reported."""
    server, recipe, _ = world
    rows = [
        {"prompt": f"{a}+{b}=", "answer": str(a + b), "demonstration": f"{a}+{b}>{a + b}"} for a in range(9) for b in range(9)
    ]
    words = {"recipe": recipe, "rewards": [tree()["rewards"][0]], "runs_folder": str(server.folder / "runs")}
    words |= {"train.num_steps": 1, "evaluation.sets": {}, "prompts.args": {}, "checkpoints.every_steps": 0}
    runs = [
        cohort.train(prompts=rows, name=f"rows-{seed}", **{"seed": seed, "evaluation.held_out": 0.3}, **words).folder
        for seed in (0, 1)
    ]
    printed, document = evaluated(server, *runs)
    expected = summary_of(runs[0])["eval"]["after"]["pass@1"]
    assert document[str(runs[0])]["sets"]["held_out"]["pass@1"] == expected
    assert document["paired"][f"{runs[1]} against {runs[0]}"]["held_out"]["pass@1"]["problems"] == 8
    (seen,) = document["seen_in_training"].values()
    held_out = [{row["prompt"] for row in split_held_out(rows, 0.3, seed)[1]} for seed in (0, 1)]
    asked = [row["prompt"] for row in split_held_out(rows, 0.3, 0)[1]][:8]
    assert seen == {"held_out": sum(prompt not in held_out[1] for prompt in asked)}
    assert f"warning: {runs[1]} was trained on {seen['held_out']} of the 8 problems of held_out" in printed

    _, document = evaluated(server, runs[0] / "model", "--recipe", runs[0])
    assert document[str(runs[0] / "model")]["sets"]["held_out"]["pass@1"] == expected


def test_a_reward_that_was_a_closure_must_be_given(world):
    server, recipe, _ = world
    settings = {"recipe": recipe, "runs_folder": str(server.folder / "runs"), "train.num_steps": 0, "cold_start.num_steps": 1}
    run = cohort.train(rewards=[lambda completions, **columns: [0.5 for _ in completions]], name="closure", **settings).folder
    child = server.run("evaluate", run)
    assert child.wait() == 1
    assert "evaluation needs the function" in child.output
    assert "cohort.evaluate" in child.output
    assert "cohort.resume(run, rewards=[function])" in child.output
    _, document = evaluated(server, run, "--set", "rewards.0.function=math_answer")
    assert document[str(run)]["sets"]["held_out"]["pass@1"]["value"] is not None


def test_an_output_that_cannot_be_written_is_found_before_the_evaluation(world):
    server, recipe, run = world
    for output, said in (
        (server.folder / "nowhere" / "numbers.json", f"the folder {server.folder / 'nowhere'} does not exist"),
        (recipe / "numbers.json", "Not a directory"),
        (server.folder, "Is a directory"),
    ):
        child = server.run("evaluate", run, "--output", output)
        assert child.wait() == 1
        assert f"error: --output {output}: cannot be written ({said})" in child.output
        assert "evaluating" not in child.output
    refuse_unwritable(server.folder / "new.json")
    assert not (server.folder / "new.json").exists()  # trying leaves nothing behind
    (server.folder / "old.json").write_text("kept")
    refuse_unwritable(server.folder / "old.json")
    assert (server.folder / "old.json").read_text() == "kept"


def test_only_overrides_of_the_model_reach_another_run():
    """Other overrides are for the problems and may not fit the other run's recipe."""
    words = [
        "model.dtype=bfloat16",
        "model=x",
        "rewards.1.weight=2",
        "seed=3",
        "evaluation={samples=2}",
        "model={dtype='auto'}",
    ]
    assert select_model_overrides(words) == [words[0], words[1], words[5]]


def result_of(label: str, keys: list[str], success: list[str]) -> TargetResult:
    verdicts = {"problem": keys, "success": success, "greedy": ""}
    document = {"step": 0, "sets": {"held_out": {}}, "per_problem": {"held_out": verdicts}}
    return TargetResult(Target(label, label, None, Recipe(), None), Evaluation.from_json(document))


def test_paired_lines_do_not_wrap_and_missing_common_problems_are_reported():
    def printed(other: TargetResult) -> list[str]:
        console = Console(file=io.StringIO(), width=40, highlight=False)
        print_comparison(console, first, other, compare(first.evaluation, other.evaluation))
        return console.file.getvalue().splitlines()

    first = result_of("runs/a-rather-long-name", ["a", "b"], ["00", "01"])
    line, two = printed(result_of("runs/another-long-name", ["b", "c"], ["11", "01"]))
    assert line == (
        "held_out pass@1: runs/another-long-name against runs/a-rather-long-name +50.0 points (paired over 1 problem, p = 1; "
        "1 problem is too few for an interval; it takes 6): no clear difference"
    )
    assert two.startswith("held_out pass@2: runs/another-long-name against runs/a-rather-long-name +0.0 points (")
    (line,) = printed(result_of("runs/another-long-name", ["x", "y"], ["11", "11"]))
    assert "no problem has a verdict on both sides" in line
    assert "p = " not in line


def test_a_table_of_80_columns_keeps_every_label_and_figure():
    """A reason is a line below the table: as a cell it would squeeze the figures away."""
    estimates = {
        "pass@1": Estimate(0.5, 0.25, 0.75, ""),
        "maj@8": Estimate(None, None, None, NO_ANSWER),
        "reward": Estimate(0.5, 0.2, 0.8, ""),
    }
    counts = {"held_out": {"problems": 128.0, "truncated": 0.125, "length_mean": 12.0}}
    stream = io.StringIO()
    evaluation = Evaluation(0, {"held_out": estimates}, counts, {})
    print_table(Console(file=stream, width=80), result_of("runs/first", [], []).target, evaluation)
    lines = [" ".join(line.split()) for line in stream.getvalue().splitlines()]
    assert lines[2:] == [
        "pass@1 50.0 % 25.0 to 75.0", "maj@8 –", "reward 0.500 0.200 to 0.800", "truncated 12.5 %", "mean length 12.0 tokens",
        f"note: maj@8: {NO_ANSWER}",
    ]  # fmt: skip


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
        (["/nowhere", "--recipe", "{recipe}"], "/nowhere: no such folder"),
        (["{run}", "--set", "evaluation.samples=0"], "has no evaluation"),
        (["{run}", "--set", "evaluation.sample=2"], "did you mean 'samples'"),
    ],
)
def test_mistakes_are_answered_with_a_message(world, words, said):
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


def test_servers_of_a_training_run_are_not_used(tmp_path):
    recipe = build_recipe(tree(**{"sampling.servers": ["http://127.0.0.1:9"]}) | {"runs_folder": str(tmp_path), "name": "run"})
    run = RunFolder.create(recipe)
    problems = Problems("run", recipe, RunFolder.open(run.root))
    run.unlock()
    refuse_busy_servers(problems)
    run.lock()
    with pytest.raises(RunError, match=r"run is being trained.*http://127\.0\.0\.1:9.*--set sampling\.servers=\[\]"):
        refuse_busy_servers(problems)
    alone = replace(problems, recipe=build_recipe(tree()))
    refuse_busy_servers(alone)
