"""A run that multiplies with oneDNN: the same bits however it is cut, spread over ranks, decoded and threaded; and refused by name where
oneDNN is not accepted."""

from __future__ import annotations

import json
import signal

import pytest
from ranks_tools import run_ranks, start_ranks
from torch import nn

from cohort.ops.products import explain_refusal
from session_tools import Trap, differences, fork_server, rows_of, summary_of, write_recipe

REFUSAL = explain_refusal([nn.Linear(512, 8), nn.Linear(1024, 8)])
pytestmark = pytest.mark.skipif(bool(REFUSAL), reason=f"oneDNN is refused on this CPU: {REFUSAL}")
LARGE: dict[str, object] = {
    "model.scratch": {
        "hidden_size": 512,
        "intermediate_size": 1024,
        "num_layers": 1,
        "num_heads": 4,
        "num_kv_heads": 2,
        "max_positions": 32,
    },
    "rewards": [{"function": "session_tools:digit_share"}],
    "cold_start.num_steps": 4,
    "train.num_steps": 2,
    "train.prompts_per_step": 8,
    "train.micro_batch_tokens": 64,
    "train.minibatches_per_step": 2,
    "train.passes_per_step": 1,
    "evaluation.samples": 2,
    "evaluation.max_problems": 4,
    "evaluation.every_steps": 0,
    "evaluation.greedy": False,
    "checkpoints.every_steps": 1,
}
"""The smallest layer for which oneDNN is considered."""
REFUSED = Trap("cohort.ops.products:explain_refusal", do="give its error is too large")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """(fork server, the words that start a run, the run of one process)."""
    folder = tmp_path_factory.mktemp("onednn")
    recipe = write_recipe(folder / "large.toml", **LARGE)
    with fork_server(folder) as server:
        words = ("train", str(recipe), f"runs_folder={folder}")
        run_ranks(server, 0, *words, "name=plain")
        yield server, words, folder / "plain"


def test_the_choice_is_recorded_and_sampling_agrees_with_training(plain):
    _, _, run = plain
    assert summary_of(run)["products"] == "onednn"
    assert json.loads((run / "checkpoints" / "step-2" / "state.json").read_text(encoding="utf-8"))["products"] == "onednn"
    assert [row["rollout/mismatch_max"] for row in rows_of(run)] == [0.0, 0.0]
    assert all(row["optim/grad_norm"] > 0 for row in rows_of(run))


@pytest.mark.parametrize("size", [2, pytest.param(1, marks=pytest.mark.prove), pytest.param(3, marks=pytest.mark.prove)])
def test_ranks_change_no_bit(plain, size):
    server, words, run = plain
    run_ranks(server, size, *words, f"name=ranks {size}")
    assert differences(run.parent / f"ranks {size}", run) == []


@pytest.mark.parametrize("slots", [7, pytest.param(1, marks=pytest.mark.prove), pytest.param(64, marks=pytest.mark.prove)])
def test_slots_change_no_bit(plain, slots):
    server, words, run = plain
    run_ranks(server, 0, *words, f"name=slots {slots}", f"sampling.slots={slots}")
    assert differences(run.parent / f"slots {slots}", run) == []


def test_a_second_thread_changes_no_bit(plain):
    server, words, run = plain
    two = Trap("cohort.session:start", do="threads 2")
    child = server.run(*words, "name=two threads", traps=[two])
    assert child.wait() == 0, child.output
    state = json.loads((run.parent / "two threads" / "checkpoints" / "step-2" / "state.json").read_text(encoding="utf-8"))
    assert state["threads"] == 2
    assert differences(run.parent / "two threads", run) == []


def test_a_killed_run_goes_on_with_the_same_bits_or_names_what_is_missing(plain):
    server, words, run = plain
    cut = run.parent / "cut"
    death = Trap("cohort.training.state:TrainState.finish_step", call=2)
    assert server.run(*words, "name=cut", traps=[death]).wait() == -signal.SIGKILL
    child = server.run("resume", cut, traps=[REFUSED])
    assert child.wait() == 1
    assert "multiplies float32 matrices with oneDNN, and on this machine its error is too large" in child.output
    child = server.run("resume", cut, traps=())
    assert child.wait() == 0, child.output
    assert differences(cut, run) == []


def test_a_rank_that_cannot_follow_the_first_one_is_named(plain):
    server, words, _ = plain
    launch = start_ranks(server, 2, *words, "name=apart", traps={1: [REFUSED]})
    assert all(launch.wait())
    assert "on this machine its error is too large" in launch.output


def test_the_first_rank_decides_for_all(plain):
    server, words, run = plain
    launch = start_ranks(server, 2, *words, "name=first", traps={0: [REFUSED]})
    assert launch.wait() == [0, 0], launch.output
    assert summary_of(run.parent / "first")["products"] == "mkl"


def test_an_evaluation_follows_the_run_or_names_what_is_missing(plain):
    server, _, run = plain
    child = server.run("evaluate", run, "--output", run.parent / "evaluated.json", traps=[REFUSED])
    assert child.wait() == 1
    assert f"the run {run} multiplies float32 matrices with oneDNN" in " ".join(child.output.split())
    child = server.run("evaluate", run, "--output", run.parent / "evaluated.json", traps=())
    assert child.wait() == 0, child.output
