"""The commands as a person types them: what they print, what they leave in the run folder, and how they say no."""

from __future__ import annotations

import json
import re
import subprocess
import time
import tomllib
from pathlib import Path

import pytest
from typer.main import get_command

from cohort.cli import app
from cohort.observe import metrics
from cohort.recipe.file import list_leaf_fields, load_recipe
from cohort.recipe.schema import Recipe
from session_tools import COHORT, ONE_THREAD, cpu_of_children, fork_server, rows_of, summary_of, write_recipe


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """(fork server, recipe file, a finished run, what training printed)."""
    folder = tmp_path_factory.mktemp("cli")
    recipe = write_recipe(folder / "tiny.toml", **{"monitors.console": True, "train.num_steps": 3})
    with fork_server(folder) as server:
        child = server.run("train", recipe, "name=run", "checkpoints.keep=5")
        assert child.wait() == 0, child.output
        yield server, recipe, folder / "runs" / "run", child.output


def says(server, *words: object, code: int = 0) -> str:
    child = server.run(*words)
    assert child.wait() == code, child.output
    assert "Traceback" not in child.output
    return child.output


# -- train -------------------------------------------------------------------------------------------------------------


def test_training_shows_every_stage_and_ends_with_the_table_and_the_report(world):
    *_, printed = world
    stages = [
        "cold start 24/24",
        "baseline",
        "training 1/3",
        "evaluation, held_out",
        "training 3/3",
        "final, held_out",
        "before",
        "pass@1",
        "report.html",
    ]
    place = 0
    for stage in stages:
        place = printed.index(stage, place)
    for word in ("reward", "length", "KL", "entropy", "tok/s", "left", "before", "after"):
        assert word in printed


def test_the_run_folder_is_as_documented(world):
    _, _, run, _ = world
    names = {path.name for path in run.iterdir()}
    assert names == {
        "recipe.toml", "metrics.jsonl", "evaluations.jsonl", "rollouts", "samples", "checkpoints", "start", "model", "summary.json",
        "report.html", "events.jsonl", "run.lock",
    }  # fmt: skip
    summary = summary_of(run)
    assert {"status", "steps", "seconds", "eval", "seed"} <= summary.keys()
    assert (summary["status"], summary["steps"]) == ("finished", 3)
    for when in ("before", "after"):
        for what in ("pass@1", "pass@8", "maj@8", "greedy"):
            assert summary["eval"][when][what].keys() == {"value", "low", "high"}
            assert 0 <= summary["eval"][when][what]["low"] <= summary["eval"][when][what]["high"] <= 1
    assert [row["step"] for row in rows_of(run)] == [1, 2, 3]
    assert {path.name for path in (run / "checkpoints").iterdir()} >= {"step-0", "step-2", "step-3"}
    page = (run / "report.html").read_text()
    assert "pass@1" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_rollouts_hold_every_completion_with_parts_advantage_ids_and_logprobs(world):
    import pyarrow.parquet as pq

    _, _, run, _ = world
    table = pq.read_table(run / "rollouts" / "step-000002.parquet").to_pylist()
    row = rows_of(run)[1]
    assert len(table) == row["rollout/completions"] == 24
    expected = {
        "step", "group", "sample", "policy_version", "prompt_index", "prompt", "completion", "end", "reward", "success",
        "length", "extracted", "reference_answer", "advantage", "faults", "steps", "extras", "prompt_ids", "completion_ids", "sampling_logprobs",
        "reward/math_answer", "answer", "demonstration",
    }  # fmt: skip
    assert table[0].keys() == expected
    assert sum(len(rollout["completion_ids"]) for rollout in table) == row["rollout/tokens"]
    for rollout in table:
        assert len(rollout["completion_ids"]) == len(rollout["sampling_logprobs"])
        assert all(logprob <= 0 for logprob in rollout["sampling_logprobs"])
    assert [(rollout["group"], rollout["sample"]) for rollout in table] == [(g, s) for g in range(6) for s in range(4)]
    assert sum(rollout["reward"] for rollout in table) / 24 == pytest.approx(row["reward/mean"])
    for group in range(6):
        members = [rollout for rollout in table if rollout["group"] == group]
        assert sum(member["advantage"] for member in members) == pytest.approx(0, abs=1e-6)


def test_the_recipe_of_a_run_is_complete_and_comes_back_the_same(world):
    _, recipe, run, _ = world
    written = tomllib.loads((run / "recipe.toml").read_text())
    for path, _ in list_leaf_fields(Recipe):
        node = written
        for name in path.split("."):
            assert name in node, path
            node = node[name]
    assert load_recipe(run / "recipe.toml") == load_recipe(recipe, ["name=run", "checkpoints.keep=5"])


def test_every_metric_that_a_run_writes_is_documented(world):
    _, _, run, _ = world
    page = (Path(__file__).parents[1] / "docs" / "metrics.md").read_text()
    names = {name for row in rows_of(run) for name in row if name not in ("step", "evidence")}
    assert len(names) > 40
    for name in names:
        metric = metrics.find_metric(name)
        assert metric is not None, name
        assert metric.name in page, name


def test_a_run_is_never_overwritten(world):
    server, recipe, run, _ = world
    before = (run / "summary.json").stat().st_mtime_ns
    printed = says(server, "train", recipe, "name=run", code=1)
    assert printed.splitlines()[-1].startswith(
        f"error: {run} exists. Resume it with `cohort resume {run}`, or choose another name="
    )
    assert (run / "summary.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["group_size=1"], "train.group_size"),
        (["temperature=0"], "sampling.temperature"),
        (["group_sise=4"], "did you mean 'group_size'"),
        (["num_generations=4"], "train.group_size"),
        (["top_p=0.9", "sampling.top_p=0.9"], "top_p"),
        (["prompts.source=task:colum_addition"], "column_addition"),
        (["model.source=/nowhere/at/all"], "model.source: /nowhere/at/all: there is no such folder"),
        (["sampling.max_completion_tokens=40"], "Lower sampling.max_completion_tokens"),
        (["rewards.0.function=math_anser"], "math_answer"),
        (["monitors.wandb=true"], "wandb"),
    ],
)
def test_a_mistake_names_the_field_and_the_fix_and_exits_with_1(world, words, said):
    server, recipe, _, _ = world
    printed = says(server, "train", recipe, *words, code=1)
    assert printed.splitlines()[-1].startswith("error: ") or "error: " in printed
    assert said in printed


def test_an_unknown_recipe_lists_the_built_in_ones(world):
    server, *_ = world
    printed = says(server, "train", "colum_addition", code=1)
    assert "did you mean 'column_addition'" in printed


# -- the other commands ------------------------------------------------------------------------------------------------


def test_resume_of_a_finished_run_says_so_and_of_another_folder_too(world, tmp_path):
    server, _, run, _ = world
    assert f"{run} is finished: {run / 'report.html'}" in says(server, "resume", run)
    assert "is not a run folder: it has no recipe.toml" in says(server, "resume", tmp_path, code=1)
    assert "is not a run folder" in says(server, "report", tmp_path, code=1)


def test_report_writes_the_page_again(world):
    server, _, run, _ = world
    (run / "report.html").unlink()
    assert says(server, "report", run).strip() == str(run / "report.html")
    assert (run / "report.html").stat().st_size > 10_000


def test_recipes_are_listed(world):
    server, *_ = world
    assert re.match(r"column_addition +A Llama of 0.8", says(server, "recipes"))


def test_help_lists_every_command_and_takes_less_than_half_a_second():
    """Best of five, in processes of their own, without torch; CPU time, for the machine may be busy."""
    best = 9.0
    for _ in range(5):
        started = cpu_of_children()
        printed = subprocess.run([COHORT, "--help"], env=ONE_THREAD, capture_output=True, text=True, check=True).stdout
        best = min(best, cpu_of_children() - started)
    page = (Path(__file__).parents[1] / "docs" / "commands.md").read_text(encoding="utf-8")
    commands = get_command(app).list_commands(None)
    assert {"train", "resume", "evaluate", "report"} <= set(commands)
    for command in commands:
        assert re.search(rf"^\W*{command} ", printed, re.MULTILINE), command
        assert f"## `cohort {command}`" in page, command
    assert best < 0.5


def test_no_command_is_help_and_an_unknown_one_an_error():
    nothing = subprocess.run([COHORT], env=ONE_THREAD, capture_output=True, text=True, check=False)
    assert "Usage" in nothing.stdout + nothing.stderr
    wrong = subprocess.run([COHORT, "tarin"], env=ONE_THREAD, capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "tarin" in wrong.stderr


def test_sigterm_to_the_real_command_saves_and_exits_with_130(world):
    """The installed script in a process of its own, not a fork of a prepared one; stopped at whatever it is doing."""
    _, recipe, run, _ = world
    folder = run.parents[1]
    process = subprocess.Popen(
        [COHORT, "train", str(recipe), "name=real", "train.num_steps=10000", "evaluation.every_steps=0", "evaluation.samples=0"],
        env=ONE_THREAD, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 300
    rows = folder / "runs/real/metrics.jsonl"
    while not rows.exists() or rows.read_text().count("\n") < 2:  # with the second row the first step is finished
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 130, printed
    assert f"SIGTERM: saved. Resume with: cohort resume {folder}/runs/real" in printed
    summary = json.loads((folder / "runs/real/summary.json").read_text())
    assert summary["status"] == "interrupted"
    assert summary["steps"] >= 1
