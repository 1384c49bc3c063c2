"""The whole life of a run with functions of somebody's own, in processes of their own, with the module in the current folder."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal

import pytest
import tomli_w

from cohort.observe.run_folder import RunFolder
from cohort.recipe.describe import describe_algorithm
from session_tools import Trap, differences, fork_server, rows_of, summary_of, tree

SOURCE = '''
"""An advantage, a region with two parameters and an aggregation."""
import torch
from cohort.algorithms import advantages, named, regions
from cohort.algorithms.registry import advantage, region


def median(rewards_PG, scored_PG):
    """Reward minus the median of its group."""
    return rewards_PG - rewards_PG.quantile(0.5, dim=1, keepdim=True)


def soft(tokens, *, sharpness=10.0, floor):
    """A trust region without an edge."""
    gate_M = torch.sigmoid(sharpness * (regions.ratio(tokens.policy_logprobs_M, tokens.old_logprobs_M) - 1.0))
    return -tokens.advantages_M * (floor + gate_M * 4.0 / sharpness)


def roots(lengths_N):
    """A completion weighs as the root of its length."""
    return [1.0 / (len(lengths_N) * length**0.5) if length else 0.0 for length in lengths_N]


def as_normalized(rewards_PG, scored_PG, *, std_ddof, std_epsilon):
    return advantages.group_normalized(rewards_PG, scored_PG, std_ddof=std_ddof, std_epsilon=std_epsilon)


@region(idle_at_zero=True, zero_on_policy=True)
def as_clip(tokens, *, clip_low, clip_high):
    return regions.clip(tokens, clip_low=clip_low, clip_high=clip_high)


def as_sequence_mean(lengths_N):
    return named.sequence_mean(lengths_N)


def too_short(rewards_PG, scored_PG):
    return rewards_PG[:, 1:]
'''
REWARD = """
def digit_share(completions, **columns):
    return [sum(character.isdigit() for character in text) / (1 + len(text)) for text in completions]
"""
SHORT = {
    "cold_start.num_steps": 0,
    "rewards": [{"function": "scores:digit_share", "threshold": 0.3}],
    "train.num_steps": 3,
    "train.prompts_per_step": 4,
    "train.minibatches_per_step": 2,
    "train.passes_per_step": 1,
    "evaluation.every_steps": 0,
    "evaluation.max_problems": 4,
    "evaluation.samples": 2,
    "evaluation.greedy": False,
    "checkpoints.every_steps": 2,
}
OWN = {
    "algorithm.advantage": "mine:median",
    "algorithm.region": "mine:soft",
    "algorithm.aggregation": "mine:roots",
    "algorithm.args": {"floor": 0.25},
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """(server whose folder holds mine.py, recipe that names its functions, a run of that recipe)."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "mine.py").write_text(SOURCE)
    (folder / "scores.py").write_text(REWARD)
    recipe = write(folder / "own.toml", **OWN)
    with fork_server(folder) as server:
        child = server.run("train", recipe, "name=whole")
        assert child.wait() == 0, child.output
        yield server, recipe, folder / "runs" / "whole"


def write(file, **overrides):
    file.write_text(tomli_w.dumps(tree(**SHORT | overrides)), encoding="utf-8")
    return file


def contents(run):
    """Every file but the one that names the process."""
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "run.lock"}


def test_it_learns_with_these_functions_and_writes_down_what_they_are(world):
    _, _, run = world
    assert summary_of(run)["status"] == "finished"
    assert len(rows_of(run)) == 3
    document = json.loads((run / "algorithm.json").read_text())
    digest = hashlib.sha256(SOURCE.encode()).hexdigest()
    assert {kind: (entry["function"], entry["digest"]) for kind, entry in document.items() if kind != "version"} == {
        "advantage": ("mine:median", digest),
        "region": ("mine:soft", digest),
        "aggregation": ("mine:roots", digest),
    }
    assert document["region"]["parameters"] == {"sharpness": {"default": 10.0}, "floor": {}}
    assert document["region"]["args"] == {"floor": 0.25}
    assert document["region"]["sentence"] == "A trust region without an edge."
    assert document["advantage"]["traits"]["compares_group"] is True
    told = describe_algorithm(RunFolder(run).recipe().algorithm)
    assert "-> mine:median -> mine:soft (sharpness 10, floor 0.25) -> mine:roots;" in told
    assert told in (run / "report.html").read_text().replace("&gt;", ">")


def test_advantages_are_those_of_the_function(world):
    import pyarrow.parquet as pq

    _, _, run = world
    rows = pq.read_table(run / "rollouts" / "step-000001.parquet").to_pylist()
    groups: dict[int, list[dict]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    for members in groups.values():
        rewards = sorted(row["reward"] for row in members)
        middle = (rewards[1] + rewards[2]) / 2
        assert [row["advantage"] for row in members] == pytest.approx([row["reward"] - middle for row in members], abs=1e-7)
    assert any(row["advantage"] for row in rows)


def test_functions_that_say_what_the_built_in_ones_say_train_to_the_same_bits(world):
    server, _, _ = world
    runs = server.folder / "runs"
    twins = {"advantage": "mine:as_normalized", "region": "mine:as_clip", "aggregation": "mine:as_sequence_mean"}
    for name, choices in {"built_in": {}, "twins": {f"algorithm.{kind}": spec for kind, spec in twins.items()}}.items():
        child = server.run("train", write(server.folder / f"{name}.toml", **choices), f"name={name}")
        assert child.wait() == 0, child.output
    assert differences(runs / "twins", runs / "built_in") == []


def write_source(folder, text):
    """As an editor would, but for the bytecode: Python takes it for current where a file of the same size is of the same second."""
    (folder / "mine.py").write_text(text)
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)


def test_a_run_killed_inside_a_step_ends_with_the_same_bits_and_is_refused_after_an_edit(world):
    server, recipe, whole = world
    run, edited = whole.with_name("stopped"), whole.with_name("edited")
    inside_step_2 = Trap("cohort.training.state:TrainState.update", 3, signal=signal.SIGTERM, after=True)
    child = server.run("train", recipe, "name=stopped", traps=[inside_step_2])
    assert child.wait() == 130, child.output
    shutil.copytree(run, edited)

    then, changed = SOURCE, SOURCE.replace("quantile(0.5", "quantile(0.4")
    write_source(server.folder, changed)
    before = contents(edited)
    child = server.run("resume", edited)
    assert child.wait() == 1
    for source in (then, changed):
        assert hashlib.sha256(source.encode()).hexdigest() in child.output
    assert "error: algorithm.advantage: the source of mine:median has changed since the run was started" in child.output
    assert "restore the file or start a new run" in child.output
    assert contents(edited) == before
    write_source(server.folder, then)

    child = server.run("resume", run, traps=[Trap("cohort.training.state:TrainState.finish_step", 2)])
    assert child.wait() == -signal.SIGKILL, child.output
    child = server.run("resume", run)
    assert child.wait() == 0, child.output
    assert differences(run, whole) == []


def test_whoever_looks_at_the_run_does_not_need_the_module(world):
    server, _, run = world
    (server.folder / "mine.py").rename(server.folder / "elsewhere.py")
    try:
        report = (run / "report.html").read_text()
        for words in (("report", run), ("evaluate", run, "--output", server.folder / "numbers.json")):
            child = server.run(*words)
            assert child.wait() == 0, child.output
        assert (run / "report.html").read_text() == report
        after = summary_of(run)["eval"]["after"]["pass@1"]["value"]
        assert (
            json.loads((server.folder / "numbers.json").read_text())[str(run)]["sets"]["held_out"]["pass@1"]["value"] == after
        )
        child = server.run("train", "own.toml", "name=nowhere")
        assert child.wait() == 1
        assert "error: algorithm.advantage: cannot import mine:median" in child.output
    finally:
        (server.folder / "elsewhere.py").rename(server.folder / "mine.py")


def test_the_doctor_calls_the_functions_before_a_night_is_spent(world):
    server, recipe, _ = world
    child = server.run("doctor", recipe)
    child.wait()  # random weights: other checks may fail
    line = next(line for line in child.output.splitlines() if " algorithm " in line)
    assert line.startswith("ok ")
    assert "mine:median, mine:soft, mine:roots: advantages from -" in line
    child = server.run("doctor", recipe, "advantage=mine:too_short")
    assert child.wait() == 1
    line = next(line for line in child.output.splitlines() if " algorithm " in line)
    assert line.startswith("FAILURE")
    assert "'mine:too_short' returned (8, 3); expected a finite number for each of (8, 4)" in line
    child = server.run("doctor", recipe, "algorithm.args.flor=1")
    assert child.wait() == 1
    assert "algorithm.args.flor: no function in this recipe has this parameter; did you mean 'floor'?" in child.output


@pytest.mark.prove
def test_a_contender_that_names_functions_is_compared_and_an_edit_in_the_middle_is_refused(world):
    server, _, _ = world
    base = write(server.folder / "base.toml", **{"train.num_steps": 1, "algorithm.kl_coef": 0.0})
    contender = "grpo:advantage=mine:median,region=mine:soft,args.floor=0.5"
    words = ("compare", f"soft={contender}", "--recipe", base, "--output", "compared")
    child = server.run(*words)
    assert child.wait() == 0, child.output
    assert any(line.startswith("soft ") for line in child.output.splitlines())
    found = json.loads((server.folder / "compared" / "compare.json").read_text())
    assert [run["status"] for run in found["contenders"][0]["runs"]] == ["finished"]
    assert found["contenders"][0]["kl_per_completion"] > 0  # measured on the run, in a process without the functions
    run = RunFolder(server.folder / "compared" / "soft-seed-0").recipe()
    assert run.algorithm.read_parameters(run.algorithm.chosen.region) == {"sharpness": 10.0, "floor": 0.5}
    (server.folder / "mine.py").write_text(SOURCE + "# edited\n")
    child = server.run(*words)
    code = child.wait()
    (server.folder / "mine.py").write_text(SOURCE)
    assert code == 1
    assert "holds another comparison: contenders.soft.source.advantage is" in child.output
