"""Changes that a resume refuses, and resumes that need only the run folder."""

from __future__ import annotations

import errno
import json
import os
import re
import signal

import pytest

from cohort import loop, session
from cohort.data.column_addition import column_addition
from cohort.errors import PromptError, RunError
from cohort.model.scratch import build_scratch
from session_tools import leftovers, rows_of, summary_of, tiny, train_tiny


def write_rows(file, seed=0):
    rows = column_addition("train", seed=seed, digits=1, count=40)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def interrupt_at(monkeypatch, step):
    """SIGTERM while the given step is observed, with one update of it already taken."""
    observe = loop.observe_step

    def observing(parts, state, watch):
        if state.step + 1 == step:
            os.kill(os.getpid(), signal.SIGTERM)
        observe(parts, state, watch)

    monkeypatch.setattr(loop, "observe_step", observing)


def test_changed_data_is_refused_and_restored_data_goes_on(tmp_path, monkeypatch):
    file = write_rows(tmp_path / "data.jsonl")
    with monkeypatch.context() as patch:
        interrupt_at(patch, 2)
        assert train_tiny(tmp_path, **{"prompts.source": str(file), "prompts.args": {}}).status == "interrupted"
    write_rows(file, seed=5)
    with pytest.raises(RunError, match=r"have changed since the run was started .*data\.jsonl"):
        session.resume(tmp_path / "run")
    write_rows(file)
    assert session.resume(tmp_path / "run").status == "finished"


def test_a_changed_starting_model_is_refused_as_reference(tmp_path, monkeypatch):
    recipe = tiny(tmp_path)
    folder = tmp_path / "start-model"

    def save_model(seed):
        model, tokenizer = build_scratch(recipe.model.scratch, ["0123456789+=>\n"], seed=seed)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    save_model(0)
    with monkeypatch.context() as patch:
        interrupt_at(patch, 2)
        train_tiny(tmp_path, **{"model.source": str(folder), "cold_start.num_steps": 0, "algorithm.kl_coef": 0.01})
    save_model(1)
    with pytest.raises(RunError, match="no longer holds the weights that the run started from"):
        session.resume(tmp_path / "run")
    save_model(0)
    assert session.resume(tmp_path / "run").status == "finished"


def test_relative_sources_are_found_again_from_another_folder(tmp_path, monkeypatch):
    write_rows(tmp_path / "data.jsonl")
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        interrupt_at(patch, 2)
        train_tiny(tmp_path, **{"prompts.source": "data.jsonl", "prompts.args": {}})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert session.resume(tmp_path / "run").status == "finished"


def test_a_start_that_failed_at_once_does_not_take_the_name(tmp_path):
    with pytest.raises(PromptError):
        train_tiny(tmp_path, **{"prompts.source": str(tmp_path / "missing.jsonl"), "prompts.args": {}})
    assert train_tiny(tmp_path).status == "finished"
    with pytest.raises(RunError, match=r"exists\. Resume it"):
        train_tiny(tmp_path)


def test_an_interrupted_run_keeps_its_baseline_in_the_summary(tmp_path, monkeypatch):
    interrupt_at(monkeypatch, 2)
    train_tiny(tmp_path)
    before = summary_of(tmp_path / "run")["eval"]["before"]["pass@1"]["value"]
    assert before == rows_of(tmp_path / "run", "evaluations.jsonl")[0]["sets"]["held_out"]["pass@1"]["value"]
    assert summary_of(tmp_path / "run")["status"] == "interrupted"


def test_a_damaged_recipe_is_named(tmp_path):
    train_tiny(tmp_path)
    (tmp_path / "run" / "summary.json").unlink()
    (tmp_path / "run" / "recipe.toml").write_text("name = ", encoding="utf-8")
    with pytest.raises(RunError, match=r"recipe\.toml cannot be read"):
        session.resume(tmp_path / "run")


def test_a_folder_that_cannot_be_made_names_runs_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="runs_folder: cannot create"):
        train_tiny(tmp_path / "file")


def test_the_number_of_slots_is_chosen_once(tmp_path, monkeypatch):
    """Free memory may be less at the resume; the schedule must not change with it."""
    from cohort.engine import slot_engine

    with monkeypatch.context() as patch:
        interrupt_at(patch, 2)
        train_tiny(tmp_path)
    saved = json.loads(next((tmp_path / "run" / "checkpoints").glob("step-1.*/state.json")).read_text())
    assert saved["slots"] == slot_engine.MOST_SLOTS["cpu"]
    monkeypatch.setattr(slot_engine, "measure_free_memory", lambda device: 2**20)
    assert session.resume(tmp_path / "run").status == "finished"


def test_a_full_disk_stops_the_next_step_and_the_run_goes_on_later(tmp_path, monkeypatch):
    """The thread that writes meets a full disk: status failed, the file, the free bytes and the command in the error, nothing half
    written, and a resume ends the run."""
    from cohort.errors import CheckpointError
    from cohort.training import checkpoint

    write, steps = checkpoint.write_tensors, []

    def full(folder, stem, tensors):
        if "step-0" not in str(folder) and "cold" not in str(folder):
            write(folder, "half", {})
            raise OSError(errno.ENOSPC, "No space left on device", str(folder / stem))
        return write(folder, stem, tensors)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_tensors", full)
        patch.setattr("cohort.loop.observe_step", lambda run, state, watch: steps.append(state.step + 1))
        with pytest.raises(CheckpointError) as failed:
            train_tiny(tmp_path, **{"checkpoints.every_steps": 2, "train.num_steps": 9, "evaluation.every_steps": 0})
    run = tmp_path / "run"
    assert re.search(
        rf"cannot write {run}/checkpoints/\.step-2\.tmp/weights: No space left on device \([\d,]+ bytes are free there\)\. .*"
        rf"cohort resume {run}$",
        str(failed.value),
    )
    assert steps in ([1, 2, 3], [1, 2, 3, 4]), (
        "the error of step 2 is raised after step 3, or by the save of step 4 at the latest"
    )
    assert summary_of(run)["status"] == "failed"
    assert [folder.name for folder in checkpoint.list_checkpoints(run / "checkpoints")][-1] == "step-0"
    assert leftovers(run) == []
    assert session.resume(run).status == "finished"
