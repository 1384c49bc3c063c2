"""Saving while training continues: what is copied, what waits, what a failure leaves, and runs that die inside a write."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from cohort.base.world import ALONE
from cohort.errors import CheckpointError
from cohort.training import checkpoint, saver
from cohort.training.checkpoint import Snapshot
from cohort.training.saver import Saver
from session_tools import Trap, differences, fork_server, leftovers, summary_of, write_recipe


@pytest.fixture
def saving():
    made = Saver()
    yield made
    made.close()


@pytest.fixture
def gate(monkeypatch):
    """Holds the writing thread before its first file until the event is set."""
    opened, write = threading.Event(), checkpoint.write_tensors

    def held(*arguments: Any) -> Any:
        assert opened.wait(30)
        return write(*arguments)

    monkeypatch.setattr(checkpoint, "write_tensors", held)
    return opened


def start(saving: Saver, root: Path, name: str, snapshot: Snapshot, done: list[str] | None = None) -> None:
    saving.start(ALONE, root, name, lambda: snapshot, lambda: (done if done is not None else []).append(name))


def test_what_changes_after_the_copy_is_not_in_the_checkpoint(tmp_path, saving, gate, monkeypatch):
    """Tensors that span blocks, of every kind, and a document with lists that training goes on to change."""
    monkeypatch.setattr(saver, "BLOCK", 64)
    weights = {"a": torch.arange(50.0), "b": torch.ones(3, 5).T, "c": torch.tensor(7), "empty": torch.zeros(0, 2)}
    moments = {"half": torch.full((9,), 0.5, dtype=torch.bfloat16), "flag": torch.tensor([True, False])}
    expected = {
        part: {key: value.clone() for key, value in own.items()}
        for part, own in {"weights": weights, "optimizer": moments}.items()
    }
    document: dict[str, Any] = {"scores": [1.0]}
    start(saving, tmp_path, "step-1", Snapshot({"weights": weights, "optimizer": moments}, document))
    for value in (*weights.values(), *moments.values()):
        value.zero_()
    document["scores"].append(2.0)
    assert checkpoint.list_checkpoints(tmp_path) == []
    gate.set()
    saving.wait(ALONE)
    found = checkpoint.latest(tmp_path).snapshot
    assert found.document == {"scores": [1.0]}
    for part, own in expected.items():
        assert found.tensors[part].keys() == own.keys()
        for key, value in own.items():
            assert found.tensors[part][key].dtype == value.dtype
            assert torch.equal(found.tensors[part][key], value), key
    blocks = len(saving.memory.blocks)
    start(saving, tmp_path, "step-2", Snapshot({"weights": weights, "optimizer": moments}, document))
    saving.wait(ALONE)
    assert len(saving.memory.blocks) == blocks, "the host memory of the first copy is used again"
    assert float(checkpoint.latest(tmp_path).snapshot.tensors["weights"]["a"].sum()) == 0.0


def test_training_goes_on_and_older_checkpoints_stay_until_the_new_one_is_whole(tmp_path, saving, gate):
    done: list[str] = []
    start(saving, tmp_path, "step-1", snapshot_of(1), done)
    saving.check(ALONE)
    assert (saving.open is not None, done) == (True, []), "a check between two steps does not wait"
    gate.set()
    saving.wait(ALONE)
    assert (saving.open, saving.name, done) == (None, "step-1", ["step-1"])
    assert saving.writes[0].size == sum(
        file.stat().st_size for file in (tmp_path / "step-1").iterdir() if file.name != "manifest.json"
    )
    start(saving, tmp_path, "step-1", Snapshot({}, {}), done)
    assert done == ["step-1"] * 2, "a name is one state: it is not written again, but pruned"
    assert saving.take_new_write() == saving.writes[0]
    assert saving.take_new_write() is None


def snapshot_of(number: int) -> Snapshot:
    return Snapshot({"weights": {"a": torch.full((9,), float(number))}, "optimizer": {}}, {"step": number})


@pytest.mark.parametrize(
    "problem", [OSError(errno.ENOSPC, "No space left on device"), PermissionError(errno.EACCES, "Permission denied")]
)
def test_a_write_that_fails_is_reported_between_steps_and_leaves_nothing(tmp_path, saving, gate, monkeypatch, problem):
    start(saving, tmp_path, "step-1", snapshot_of(1))
    gate.set()
    saving.wait(ALONE)
    saving.resume = "cohort resume runs/it"

    def fail(file: Path, *parts: Any) -> Any:
        file.write_bytes(b"half")
        raise OSError(problem.errno, problem.strerror, str(file))

    done: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_file", fail)
        start(saving, tmp_path, "step-2", snapshot_of(2), done)
        with pytest.raises(CheckpointError) as raised:
            saving.wait(ALONE)
    file = tmp_path / ".step-2.tmp" / "weights.safetensors"
    assert str(raised.value).startswith(f"cannot write {file}: {problem.strerror} (")
    assert str(raised.value).endswith("resume with: cohort resume runs/it")
    assert "bytes are free there" in str(raised.value)
    assert (os.listdir(tmp_path), done, saving.open) == (["step-1"], [], None)
    start(saving, tmp_path, "step-2", snapshot_of(2))
    saving.wait(ALONE)
    assert checkpoint.latest(tmp_path).folder.name == "step-2"


def test_a_file_size_limit_is_a_failed_write(tmp_path, saving):
    start(saving, tmp_path, "step-1", snapshot_of(1))
    saving.wait(ALONE)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, limits[1]))
    try:
        start(saving, tmp_path, "step-2", Snapshot({"weights": {"a": torch.zeros(2**16)}, "optimizer": {}}, {}))
        with pytest.raises(CheckpointError, match="File too large"):
            saving.wait(ALONE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(tmp_path) == ["step-1"]


def test_without_host_memory_for_a_copy_saving_waits_for_the_write(tmp_path, saving, monkeypatch):
    said: list[str] = []
    saving.warn = said.append
    monkeypatch.setattr(saver, "FREE_SHARE", 0.0)
    start(saving, tmp_path, "step-1", snapshot_of(1))
    assert saving.open is None
    assert saving.memory.blocks == []
    assert checkpoint.latest(tmp_path).snapshot.document == {"step": 1}
    assert "saving stops training until the checkpoint is written" in said[0]


# -- whole runs ----------------------------------------------------------------------------------------------------------------

SAVED: dict[str, Any] = {"train.num_steps": 8, "checkpoints.every_steps": 1, "cold_start.num_steps": 2, "evaluation.samples": 0}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """(fork server, recipe, folder for runs, the uninterrupted run)"""
    folder = tmp_path_factory.mktemp("saver")
    recipe = write_recipe(folder / "tiny.toml", **SAVED)
    with fork_server(folder) as server:
        child = server.run("train", recipe, "name=whole", f"runs_folder={folder}")
        assert child.wait() == 0, child.output
        yield server, recipe, folder, folder / "whole"


WRITING = (
    "cohort.training.checkpoint:write_tensors",
    "cohort.training.checkpoint:write_file",
    "cohort.training.checkpoint:count_bytes",
    "cohort.training.checkpoint:flush",
    "cohort.training.checkpoint:finish",
    "cohort.training.checkpoint:prune_checkpoints",
    "cohort.training.saver:HostMemory.copy",
)
"""Functions of the thread that writes, and the copy."""


def kill_until_finished(world: Any, name: str, draw: random.Random, most: int) -> int:
    """Kill a run inside its writes until it is finished or has died `most` times; returns the number of deaths."""
    server, recipe, folder, whole = world
    run, deaths = folder / name, 0
    while True:
        trap = Trap(draw.choice(WRITING), draw.randint(1, 12), after=draw.random() < 0.5)
        begun = (run / "recipe.toml").exists()
        words = ["resume", run] if begun else ["train", recipe, f"name={name}", f"runs_folder={folder}"]
        child = server.run(*words, traps=[trap] if deaths < most else [])
        code = child.wait()
        assert code in (0, -signal.SIGKILL), child.output
        if code == 0:
            assert differences(run, whole) == []
            shutil.rmtree(run)
            return deaths
        deaths += 1
        for kept in checkpoint.list_checkpoints(run / "checkpoints"):
            checkpoint.verify(kept)  # all that have a name are whole


def test_a_run_killed_while_it_writes_ends_with_the_same_bits(world):
    assert kill_until_finished(world, "killed", random.Random(3), 3) > 0


@pytest.mark.prove
def test_thirty_kills_while_checkpoints_are_written(world, capsys):
    draw, deaths, runs = random.Random(30), 0, 0
    while deaths < 30:
        deaths += kill_until_finished(world, f"thirty-{runs}", draw, 6)
        runs += 1
    with capsys.disabled():
        print(f"\n{deaths} kills in {runs} runs, all bitwise equal")


def test_a_signal_waits_for_the_write_in_progress(world):
    """The thread is inside the write of step 3 when SIGTERM comes: step 3 is whole, the last state is saved, exit code 130."""
    server, recipe, folder, whole = world
    run = folder / "asked"
    # The cold start saves 3 times, in 4 files each, and then every step.
    traps = [
        Trap("cohort.training.checkpoint:write_file", 21, signal=signal.SIGTERM),
        Trap("cohort.training.checkpoint:write_file", 22, do="sleep 1"),
    ]
    child = server.run("train", recipe, f"name={run.name}", f"runs_folder={folder}", "monitors.console=true", traps=traps)
    assert child.wait() == 130, child.output
    assert "SIGTERM: saved. Resume with" in child.output
    assert leftovers(run) == []
    for kept in checkpoint.list_checkpoints(run / "checkpoints"):
        checkpoint.verify(kept)
    assert summary_of(run)["steps"] >= 3
    child = server.run("resume", run)
    assert child.wait() == 0, child.output
    assert differences(run, whole) == []


@pytest.mark.prove
@pytest.mark.skipif(os.getuid() != 0, reason="mounts a file system")
@pytest.mark.parametrize(
    ("option", "problem"), [("size=16k", "No space left on device"), ("ro", "Read-only file system")], ids=["full", "read-only"]
)
def test_a_disk_that_refuses_a_write_stops_the_run_and_loses_nothing(world, tmp_path, option, problem):
    """Such a disk takes the place of checkpoints/ in the fourth step; the resume finds the checkpoints of the first three."""
    server, recipe, _, whole = world
    run = tmp_path / "whole"
    folder = run / "checkpoints"
    traps = [Trap("cohort.loop:make_batch", 4, do="sleep 5")]
    child = server.run("train", recipe, "name=whole", f"runs_folder={tmp_path}", "monitors.console=true", traps=traps)
    child.wait_for(lambda: (folder / "step-3").exists() and leftovers(folder) == [])
    subprocess.run(["mount", "-t", "tmpfs", "-o", option, "tmpfs", folder], check=True)
    try:
        assert child.wait() == 1, child.output
        said = " ".join(child.output.split())
        assert f"cannot write {folder}" in said
        assert f"{problem} (" in said
        assert "bytes are free there" in said
        assert f"cohort resume {run}" in said
        assert "Traceback" not in said
        assert os.listdir(folder) == []
    finally:
        subprocess.run(["umount", folder], check=True)
    assert summary_of(run)["status"] == "failed"
    assert checkpoint.latest(folder).folder.name == "step-3"
    child = server.run("resume", run)
    assert child.wait() == 0, child.output
    assert differences(run, whole) == []
