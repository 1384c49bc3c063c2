"""Files that a resume reads besides its checkpoint: changes that would mix two models or datasets are refused, others are reported."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from test_resume_guards import interrupt_at

from cohort import session
from cohort.data.column_addition import column_addition
from cohort.errors import RunError
from cohort.model.frozen import digest_base, digest_weights
from cohort.model.scratch import build_scratch
from cohort.observe.run_folder import find_losses
from cohort.recipe.values import Materials
from cohort.training import checkpoint
from cohort.training.resume_checks import digest_reward_module
from session_tools import bits, rows_of, summary_of, tiny, train_tiny

SMALL: dict[str, Any] = {
    "cold_start.num_steps": 2,
    "cold_start.batch_size": 8,
    "train.num_steps": 4,
    "train.minibatches_per_step": 1,
    "train.passes_per_step": 1,
    "evaluation.samples": 2,
    "evaluation.max_problems": 4,
    "checkpoints.every_steps": 0,
}


class Heard:
    """A monitor that keeps console messages."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def on_message(self, text: str) -> None:
        self.said.append(text)

    @property
    def warnings(self) -> list[str]:
        return [text for text in self.said if text.startswith("warning: ")]


def write_problems(file: Path, first: int = 0) -> Path:
    rows = column_addition("held_out", seed=0, digits=1, count=8)[first : first + 4]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """(a run stopped in its fourth step, its problems; the weights that it ends with)."""
    folder = tmp_path_factory.mktemp("stopped")
    problems = write_problems(folder / "problems.jsonl")
    changes = SMALL | {"evaluation.sets": {"held_out": {"source": str(problems), "max_prompt_tokens": 8}}}
    whole = train_tiny(folder, "whole", **changes)
    with pytest.MonkeyPatch.context() as patch:
        interrupt_at(patch, 4)
        assert train_tiny(folder, "run", **changes).status == "interrupted"
    return folder / "run", problems, bits(whole.folder / "model" / "model.safetensors")


@pytest.fixture
def run(stopped, tmp_path):
    """A copy of the stopped run; its problems are put back."""
    before = stopped[1].read_bytes()
    yield Path(shutil.copytree(stopped[0], tmp_path / "run"))
    stopped[1].write_bytes(before)


def resume(run: Path) -> tuple[Any, Heard]:
    heard = Heard()
    return session.resume(run, Materials(monitors=[heard])), heard


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(bytes(content))


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), encoding="utf-8")


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_one_bit_of_the_reference_is_refused_wherever_it_is(run):
    """The middle of the file is in no tensor's first values, and its last byte in the last of the last."""
    file = run / "start" / "model.safetensors"
    for at in (file.stat().st_size // 2, -1):
        flip(file, at)
        with pytest.raises(RunError, match="start has changed: it no longer holds the weights that the run started from"):
            resume(run)
        flip(file, at)


def test_another_config_or_tokenizer_of_the_reference_is_refused(run):
    replace(run / "start" / "config.json", "10000.0", "50000.0")
    with pytest.raises(RunError, match=r"^start: config\.json has changed .* restore the file, or start a new run"):
        resume(run)
    replace(run / "start" / "config.json", "50000.0", "10000.0")
    (run / "start" / "chat_template.jinja").write_text("{{ messages }}")
    with pytest.raises(RunError, match=r"^start: chat_template\.jinja"):
        resume(run)


def test_other_problems_are_refused_and_there_is_a_way_on_without(run, stopped):
    write_problems(stopped[1], first=1)
    with pytest.raises(RunError, match=r"evaluation set 'held_out' have changed .*evaluation\.samples = 0"):
        resume(run)
    replace(run / "recipe.toml", "samples = 2", "samples = 0")
    result, heard = resume(run)
    assert result.status == "finished"
    assert result.summary["eval"]["after"] == {}
    assert any("evaluation.samples 2 -> 0" in text for text in heard.warnings)
    assert bits(run / "model" / "model.safetensors") == stopped[2]


def test_another_model_source_is_refused(tmp_path, monkeypatch):
    model, tokenizer = build_scratch(tiny(tmp_path).model.scratch, ["0123456789+=>\n"], seed=0)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    small = SMALL | {"cold_start.num_steps": 0, "evaluation.samples": 0, "algorithm.kl_coef": 0.0, "train.num_steps": 3}
    with monkeypatch.context() as patch:
        interrupt_at(patch, 2)
        train_tiny(tmp_path, **small | {"model.source": str(tmp_path / "model")})
    for name in ("config.json", "tokenizer.json"):
        before = (tmp_path / "model" / name).read_bytes()
        (tmp_path / "model" / name).write_bytes(before + b"\n")
        with pytest.raises(RunError, match=rf"^model\.source: {name} has changed"):
            resume(tmp_path / "run")
        (tmp_path / "model" / name).write_bytes(before)
    assert resume(tmp_path / "run")[0].status == "finished"


def test_digests_see_every_bit_and_what_it_belongs_to():
    weights = {"a": torch.arange(3000.0), "b": torch.arange(600, dtype=torch.bfloat16)}
    before = digest_weights(weights)
    for name, place in (("a", 2999), ("a", 257), ("b", 599), ("b", 0)):
        changed = {key: value.clone() for key, value in weights.items()}
        changed[name].view(torch.uint8)[place * weights[name].itemsize] ^= 1
        assert digest_weights(changed) != before
    assert digest_weights({"a": weights["a"], "c": weights["b"]}) != before
    assert digest_weights({"a": weights["a"].reshape(2, 1500), "b": weights["b"]}) != before
    assert digest_weights({"a": weights["a"].clone(), "b": weights["b"].clone()}) == before


def test_digest_base_reads_every_bit():
    model = torch.nn.Linear(100, 40)
    before = digest_base(model)
    with torch.no_grad():
        model.weight[39, 99] += 1
    assert digest_base(model) != before


# -- what is mentioned, and mended where it can be ---------------------------------------------------------------------


def test_lost_records_are_named_and_the_baseline_is_restored(run):
    baseline = rows_of(run, "evaluations.jsonl")[0]
    (run / "evaluations.jsonl").unlink()
    (run / "summary.json").write_text("[1, 2]")  # of all files the one that nobody needs
    rows = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(rows[0] + rows[2])
    (run / "samples" / "before.jsonl").write_text("half a li")
    half, flipped = (run / "rollouts" / f"step-{step:06d}.parquet" for step in (3, 1))
    half.write_bytes(half.read_bytes()[:500])
    flip(flipped, 300)
    replace(run / "recipe.toml", "learning_rate = 0.001", "learning_rate = 0.002")
    result, heard = resume(run)
    assert [text.removeprefix("warning: ") for text in heard.warnings if "sampling" not in text] == [
        "recipe.toml was edited since the run was saved; the new settings apply: optimizer.learning_rate 0.001 -> 0.002",
        "the baseline in evaluations.jsonl was lost or changed; restored from the checkpoint",
        "metrics.jsonl has no row for step 2: charts and findings skip them",
        "evaluations.jsonl has no evaluation for step 2: the report skips them",
        "rollouts/ has no intact file for steps 1, 3: these completions are lost; training is not affected",
        "samples/before.jsonl is lost or damaged: the report lacks completions from before training",
    ]
    assert [(row["label"], row["step"]) for row in rows_of(run, "evaluations.jsonl")] == [("before", 0), ("after", 4)]
    assert rows_of(run, "evaluations.jsonl")[0] == baseline
    assert result.summary["eval"]["before"]["pass@1"] == baseline["sets"]["held_out"]["pass@1"]


def test_a_folder_that_cannot_be_written_comes_with_a_way_on(run, monkeypatch):
    def refuse(path):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr("cohort.observe.run_folder.lock_file", refuse)
    with pytest.raises(RunError, match=r"cannot be written \(Read-only file system\).*cp -r \S+ COPY, then cohort resume COPY"):
        resume(run)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_with_the_file_the_free_bytes_and_the_command(run, monkeypatch, number):
    write = pq.write_table

    def fill(table, file, **options):
        write(table, file, **options)
        raise OSError(number, "Error writing bytes to file")

    monkeypatch.setattr("pyarrow.parquet.write_table", fill)
    with pytest.raises(RunError) as caught:
        resume(run)
    file = run / "rollouts" / "step-000004.parquet"
    assert re.fullmatch(
        rf"{os.strerror(number)} \([\d,]+ bytes free\): {file}. Make room or make it writable, then: cohort resume {run}",
        str(caught.value),
    )
    assert summary_of(run)["error"] == str(caught.value)
    assert not list(run.rglob("*.tmp"))


def test_a_whole_run_has_nothing_to_mention(run, stopped):
    """And ends with the weights of the run that was never stopped."""
    result, heard = resume(run)
    assert result.status == "finished"
    assert [text for text in heard.warnings if "sampling" not in text] == []
    assert bits(run / "model" / "model.safetensors") == stopped[2]


def test_a_run_without_checkpoints_says_that_it_starts_anew(run, monkeypatch):
    shutil.rmtree(run / "checkpoints")
    monkeypatch.setattr(session.Session, "run", lambda self: None)
    heard = resume(run)[1]
    assert heard.warnings == ["warning: no checkpoint in checkpoints/: starting again; 3 finished steps are repeated"]
    assert rows_of(run) == []


def test_a_baseline_that_no_checkpoint_holds_is_not_made_up(run):
    """Then the report has no baseline, rather than one measured at step 3."""
    folder = checkpoint.list_checkpoints(run / "checkpoints")[-1]
    found = checkpoint.load(folder)
    shutil.rmtree(folder)
    document = {**found.document, "baseline": {}}
    checkpoint.save(folder.parent, folder.name, checkpoint.Snapshot(found.tensors, document))
    (run / "evaluations.jsonl").unlink()
    result, heard = resume(run)
    assert result.summary["eval"]["before"] == {}
    assert result.summary["eval"]["after"]
    assert [row["label"] for row in rows_of(run, "evaluations.jsonl")] == ["after"]
    assert any("the evaluation before training is lost" in text for text in heard.warnings)
    assert summary_of(run)["status"] == "finished"


def test_the_module_of_a_reward_is_found_without_being_imported(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("raise SystemExit('imported')")
    file = tmp_path / "pack" / "mine.py"
    file.write_text("raise SystemExit('imported')")
    before = digest_reward_module("pack.mine:reward")
    assert list(before) == ["mine.py"]
    file.write_text("other")
    assert digest_reward_module("pack.mine:reward") != before
    for nowhere in (
        "math_answer",
        "python:reward",
        "pack.missing:reward",
        "cohort.rewards.steps:x",
        "cohort_verify:x",
        "absent:f",
    ):
        assert digest_reward_module(nowhere) == {}


def test_records_that_were_never_asked_for_are_not_missed(tmp_path):
    recipe = tiny(tmp_path, **{"monitors.rollouts_every": 0, "evaluation.every_steps": 3, "train.num_steps": 6})
    folder: Any = SimpleNamespace(
        metrics=lambda: [{"step": step} for step in range(1, 7)],
        evaluations=lambda: [{"label": "during", "step": 3}],
        rollouts=tmp_path / "rollouts",
    )
    assert list(find_losses(folder, recipe, 6)) == []  # the sixth is the last, and has the final evaluation
