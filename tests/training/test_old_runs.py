"""Run folders that older code left: they load, resume and end with the very weights that the older code gave them.

The folders are in tests/data/runs_of_version_0, with what that code made of them. Bits are compared first. They may depend on
the machine; where it is not the recorded one, and only there, the weights are compared to a tolerance, and a warning says so.
"""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import cohort
from cohort.errors import RunError
from cohort.observe.report import write_report
from cohort.observe.run_folder import RunFolder
from cohort.recipe.versions import VERSION
from cohort.tools.compare import divergence
from cohort.tools.compare.contenders import find_contenders
from cohort.tools.compare.plan import make_plan, open_output
from cohort.tools.evaluate import run_evaluation
from cohort.training import checkpoint, state

OLD = Path(__file__).parents[1] / "data" / "runs_of_version_0"
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import fingerprint  # noqa: E402

EXPECTED = json.loads((OLD / "expected.json").read_text(encoding="utf-8"))
STOPPED = ("inside_a_step", "between_steps")
TOLERANCE = 1e-6


@pytest.fixture
def copied(tmp_path):
    """Gives a copy of an old run folder that may be written to."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(OLD / name, tmp_path / name))

    return copy


def test_the_folders_are_what_they_are_meant_to_be():
    """Of version 0, stopped where they claim, with all that a checkpoint can hold, and learning in every step."""
    for name in ("finished", *STOPPED):
        assert "version" not in tomllib.loads((OLD / name / "recipe.toml").read_text(encoding="utf-8"))
        rows = EXPECTED["runs"][name]["metrics"]
        assert [row["step"] for row in rows] == [1, 2, 3]
        assert all(row["optim/grad_norm"] > 0 and row["loss/kl"] > 0 for row in rows)
    inside = checkpoint.load(OLD / "inside_a_step" / "checkpoints" / "step-1.1")
    assert {"weights", "optimizer", "batch", "reference", "prompt_choice"} == set(inside.tensors)
    assert len(inside.document["update_metrics"]) == 1
    assert len(inside.document["batch"]["plan"]) == 4
    assert "cohort.tasks.column_addition:check_steps" in (OLD / "inside_a_step" / "recipe.toml").read_text(encoding="utf-8")
    between = checkpoint.load(OLD / "between_steps" / "checkpoints" / "step-1")
    assert {"weights", "optimizer", "critic"} == set(between.tensors)


@pytest.mark.parametrize("name", STOPPED)
def test_a_stopped_run_ends_with_the_weights_that_the_old_code_gave_it(copied, name):
    run = copied(name)
    before = (run / "recipe.toml").read_bytes()
    assert torch.get_num_threads() == EXPECTED["machine"]["threads"]
    assert cohort.resume(run).status == "finished"
    assert (run / "recipe.toml").read_bytes() == before, "the file is brought up to date when it is read, not on the disk"
    compare_with_expected(run, name)


def compare_with_expected(run: Path, name: str) -> None:
    """Every value that the old code wrote is there and the same; new metrics and columns may stand beside them."""
    found = list(fingerprint.run_differences(EXPECTED["runs"][name], fingerprint.read_run(run)))
    found = [line for line in found if "only in the second" not in line]
    if not found:
        return
    here = list(fingerprint.tree_differences(EXPECTED["machine"], fingerprint.machine(threads=torch.get_num_threads())))
    assert here, "other bits on the same machine:\n" + "\n".join(found)
    warnings.warn(f"{name}: other bits on another machine ({'; '.join(here)}); compared to {TOLERANCE:g}", stacklevel=2)
    assert_close(load_file(run / "model" / "model.safetensors"), load_file(OLD / f"{name}.safetensors"))


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        difference = float((found[name].double() - value.double()).norm() / value.double().norm())
        assert difference <= TOLERANCE, f"{name}: {difference:.1e} of its norm"


@pytest.mark.parametrize("what", ["weights", "metrics", "missing metric"])
def test_the_comparison_sees_a_single_bit_and_a_lost_metric(copied, monkeypatch, what):
    """On the recorded machine nothing is forgiven; on another, weights beyond the tolerance are not either."""
    run = copied("finished")
    compare_with_expected(run, "finished")
    if what == "weights":
        file = run / "model" / "model.safetensors"
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    else:
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        rows[1]["reward/mean"] += 1e-12
        if what == "missing metric":
            del rows[1]["reward/mean"]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(fingerprint, "machine", lambda threads: EXPECTED["machine"])
    with pytest.raises(AssertionError, match="other bits on the same machine"):
        compare_with_expected(run, "finished")
    value = torch.ones(4)
    assert_close({"w": value * (1 + TOLERANCE / 2)}, {"w": value})
    with pytest.raises(AssertionError, match="of its norm"):
        assert_close({"w": value * (1 + TOLERANCE * 2)}, {"w": value})


def test_a_finished_run_is_read_evaluated_reported_and_compared(copied, tmp_path):
    run, other = copied("finished"), copied("between_steps")
    recipe = RunFolder.open(run).recipe()
    assert (recipe.version, recipe.train.prompts_per_step, recipe.algorithm.kl_coef) == (VERSION, 6, 0.02)
    assert cohort.resume(run).status == "finished"
    assert cohort.resume(other).status == "finished"

    run_evaluation([str(run), str(other)], "", "final", [], tmp_path / "evaluation.json")
    document = json.loads((tmp_path / "evaluation.json").read_text(encoding="utf-8"))
    assert list(document["paired"]) == [f"{other} against {run}"]
    for one in (run, other):  # the same problems, noise and weights as the run's own last evaluation
        own = json.loads((one / "summary.json").read_text(encoding="utf-8"))["eval"]["sets"]["held_out"]["after"]
        assert own["completions"] == 16 * 8
        assert document[str(one)]["sets"]["held_out"] == own

    page = Path(write_report(run)).read_text(encoding="utf-8")
    assert "math_answer" in page
    distance = divergence.measure_divergence(run)
    assert distance["completions"] > 0
    assert distance["per_token"]["value"] != 0


def test_an_old_recipe_is_a_contender_and_an_old_plan_is_the_same_comparison(copied, tmp_path):
    """plan.json holds resolved recipes: of version 0 they have no version and other names, and still are the same."""
    words = [f"old={copied('inside_a_step') / 'recipe.toml'}", "rloo"]

    def plan():
        return make_plan(find_contenders(words, str(OLD / "inside_a_step" / "recipe.toml")), (0,), tmp_path / "output")

    assert plan().field.contenders[0].recipe.rewards[1].function == "cohort.data.column_addition:check_steps"
    open_output(plan()).close()
    file = tmp_path / "output" / "plan.json"
    document = json.loads(file.read_text(encoding="utf-8"))
    recipes = [document["base"], *(entry["recipe"] for entry in document["contenders"].values())]
    for recipe in recipes:
        del recipe["version"]
        recipe["rewards"][1]["function"] = "cohort.tasks.column_addition:check_steps"
    file.write_text(json.dumps(document), encoding="utf-8")
    open_output(plan()).close()
    recipes[0]["seed"] += 1
    file.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(RunError, match=r"base\.seed is 1 there and 0 here"):
        open_output(plan())


def test_fields_that_an_old_checkpoint_lacks_are_filled_from_one_table(monkeypatch):
    """Records of any depth get what they lack, keep what they have, and the document that was read is left alone."""
    old = {"step": 3, "batch": {"rollouts": [{"end": "stop"}, {"end": "stop", "spans": [[0, 2]]}]}}
    monkeypatch.setitem(state.ADDED_FIELDS, "batch.rollouts.*", {"spans": []})
    whole = state.add_missing_fields(old)
    assert whole["base_digest"] == ""
    assert [rollout["spans"] for rollout in whole["batch"]["rollouts"]] == [[], [[0, 2]]]
    assert old["batch"]["rollouts"][0] == {"end": "stop"}
    assert state.add_missing_fields({"base_digest": "abc"})["base_digest"] == "abc"


def test_a_checkpoint_from_before_adapters_resumes(copied):
    """The oldest checkpoints hold no base_digest."""
    run = copied("between_steps")
    folder = run / "checkpoints" / "step-1"
    found = checkpoint.load(folder)
    document = {name: value for name, value in found.document.items() if name != "base_digest"}
    assert len(document) == len(found.document) - 1
    shutil.rmtree(folder)
    checkpoint.save(folder.parent, folder.name, checkpoint.Snapshot(found.tensors, document))
    assert cohort.resume(run).status == "finished"
    compare_with_expected(run, "between_steps")


# -- the command that holds two commits against each other -----------------------------------------------------------


def test_fingerprints_and_runs_are_compared_in_words(copied, monkeypatch, capsys, tmp_path):
    """Exit code 0 for the same, 1 for anything else, with the run, the key and both values."""

    def told(*words: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["fingerprint.py", *map(str, words)])
        return fingerprint.main(), capsys.readouterr().out

    left, right = OLD / "expected.json", tmp_path / "other.json"
    assert told("--compare", left, left) == (0, "the same bits in 3 runs\n")
    other = json.loads(left.read_text(encoding="utf-8"))
    other["machine"]["threads"] = 2
    other["runs"]["finished"]["metrics"][2]["loss/kl"] = 0.5
    other["runs"]["inside_a_step"]["weights"] = "0"
    del other["runs"]["between_steps"]
    right.write_text(json.dumps(other), encoding="utf-8")
    code, text = told("--compare", left, right)
    kept = EXPECTED["runs"]
    assert (code, text.splitlines()) == (
        1,
        [
            "machine: threads: 1 became 2",
            f"finished: metrics step 3 loss/kl: {kept['finished']['metrics'][2]['loss/kl']!r} became 0.5",
            f"inside_a_step: weights: {kept['inside_a_step']['weights']!r} became '0'",
            "between_steps: only in the first",
        ],
    )
    run = copied("finished")
    code, text = told("--compare-runs", OLD / "finished", run)
    assert code == 0
    assert text.startswith("the same bits: weights, ")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    rows[0] |= {"time/step": 1e9, "reward/mean": 7.0}  # times are left aside
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    code, text = told("--compare-runs", OLD / "finished", run)
    assert code == 1
    assert text == f"metrics step 1 reward/mean: {kept['finished']['metrics'][0]['reward/mean']!r} became 7.0\n"
