"""The same bits on one process or on many, whatever is trained: weights, checkpoints, metrics, evaluations and rollouts of whole runs.

Micro-batches hold one completion or two, so that every update has at least four for each of three ranks. What is compared is all
that a run leaves (session_tools.differences); only times and the number of ranks may differ.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from ranks_tools import find_free_port, hash_weights, make_environment, run_ranks, start_ranks
from safetensors.torch import load_file

from cohort.base.world import ALONE
from cohort.training import launch
from session_tools import ForkServer, Trap, differences, fork_server, rows_of, train_tiny, write_recipe

LEAST = 12
"""Micro-batches of an update: four for each of three ranks."""
START: dict[str, object] = {
    "model.scratch.hidden_size": 64,
    "model.scratch.intermediate_size": 112,
    "cold_start.num_steps": 40,
    "cold_start.learning_rate": 1e-2,
    "train.num_steps": 0,
    "evaluation.samples": 0,
}
"""The model that all runs begin with: large enough for 8-bit states, and with an MLP that is not full vectors wide."""
SHORT: dict[str, object] = {
    "cold_start.num_steps": 2,
    "cold_start.learning_rate": 1e-3,
    "cold_start.batch_size": 16,
    "train.micro_batch_tokens": 32,
    "train.num_steps": 3,
    "train.prompts_per_step": 8,
    "train.minibatches_per_step": 1,
    "train.passes_per_step": 1,
    "evaluation.every_steps": 0,
    "evaluation.max_problems": 4,
    "evaluation.samples": 2,
    "evaluation.greedy": False,
    "checkpoints.every_steps": 2,
}
GRPO = {
    **SHORT,
    "train.prompts_per_step": 12,
    "train.minibatches_per_step": 2,
    "train.num_steps": 2,
    "evaluation.every_steps": 1,
}
"""With all that TINY has: a cold start, KL to a reference, evaluation on the way."""
MIXED = {
    "optimizer.state_bits": 8,
    "algorithm.kl_target": 0.05,
    "algorithm.prompt_choice": "informative",
    "algorithm.mismatch_weight": "token_truncate",
    "train.num_steps": 2,
}
"""What keeps a state of its own from step to step, at once."""
PAIRS = {"algorithm.kl_coef": 0.1, "train.prompts_per_step": 32}
"""A micro-batch holds at least a pair, and a prompt gives one at most."""
TEACHER = "the teacher's folder"

MATRIX: dict[str, dict[str, object]] = {
    "dapo": {"algorithm.name": "dapo", "algorithm.kl_coef": 0.0},
    "ppo": {"algorithm.name": "ppo", "critic.learning_rate": 1e-3},
    "dpo": {"algorithm.name": "dpo", "algorithm.data": "policy", **PAIRS},
    "dpo from rollouts of the start": {"algorithm.name": "dpo", "algorithm.data": "start", **PAIRS},
    "lora": {"model.lora.rank": 4, "optimizer.learning_rate": 1e-2},
    "8-bit states": {"optimizer.state_bits": 8},
    "reward model": {"train.num_steps": 4, "reward_model.iterations": 2, "reward_model.prompts": 16},
    "adaptive KL": {"train.num_steps": 4, "algorithm.kl_target": 0.05},
    "informative prompts": {"train.num_steps": 4, "algorithm.prompt_choice": "informative"},
    "mismatch weights": {"algorithm.mismatch_weight": "sequence_mask"},
    "opd": {"algorithm.name": "opd", "algorithm.kl_coef": 0.0, "teacher.source": TEACHER},
    "the slow engine": {"sampling.engine": "hf", "train.num_steps": 2},
    "another seed": {"seed": 7},
}


@dataclass
class Plain:
    """The fork server, and the runs of one process that others are compared with."""

    server: ForkServer
    start: str
    """Folder of the model that they begin with."""
    notes: dict[str, dict] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return self.server.folder

    def words(self, name: str, run: str) -> list[str]:
        return ["train", str(self.folder / f"{name}.toml"), f"name={run}", f"runs_folder={self.folder}"]

    def find(self, name: str, **overrides: object) -> Path:
        """The run of one process, made once, next to its recipe."""
        run = self.folder / f"{name} plain"
        if name not in self.notes:
            write_recipe(self.folder / f"{name}.toml", **{**SHORT, "model.source": self.start, **overrides})
            run_ranks(self.server, 0, *self.words(name, run.name), notes=self.folder / "notes.json")
            self.notes[name] = json.loads((self.folder / "notes.json").read_text(encoding="utf-8"))
        return run

    def compare(self, name: str, size: int) -> str:
        """Train on this many ranks, compare the run with the plain one, and return the output of the main rank."""
        run = self.folder / f"{name} {size}"
        launch = run_ranks(self.server, size, *self.words(name, run.name))
        assert differences(run, self.folder / f"{name} plain") == []
        assert hash_weights(run) == hash_weights(self.folder / f"{name} plain")
        shutil.rmtree(run)
        return launch.ranks[0].output


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    start = train_tiny(folder, "start", **START)
    with fork_server(folder) as server:
        yield Plain(server, str(start.folder / "model"))


def check_matrix(plain: Plain, name: str, sizes: tuple[int, ...], **overrides: object) -> None:
    run = plain.find(name, **overrides)
    assert min(plain.notes[name]["micro_batches"]["update_policy"]) >= LEAST
    assert all(row["optim/grad_norm"] > 0 for row in rows_of(run)), "there was nothing to learn"
    for size in sizes:
        plain.compare(name, size)
    print(f"| {name} | `{hash_weights(run)}` | {min(plain.notes[name]['micro_batches']['update_policy'])} |")


# -- the same bits -----------------------------------------------------------------------------------------------------


def test_grpo_has_the_same_bits_on_one_process_and_on_three_ranks(plain):
    check_matrix(plain, "grpo", (3,), **GRPO)


def test_what_keeps_a_state_of_its_own_has_the_same_bits_on_two_ranks(plain):
    check_matrix(plain, "mixed", (2,), **MIXED)


@pytest.mark.prove
def test_grpo_has_the_same_bits_on_one_and_on_two_ranks(plain):
    check_matrix(plain, "grpo", (1, 2), **GRPO)


@pytest.mark.prove
@pytest.mark.parametrize("name", MATRIX)
def test_every_recipe_has_the_same_bits_on_any_number_of_ranks(plain, name):
    overrides = dict(MATRIX[name])
    if "teacher.source" in overrides:
        teacher = train_tiny(plain.folder, "teacher", **{**START, "seed": 1, "cold_start.num_steps": 32})
        overrides["teacher.source"] = str(teacher.folder / "model")
    check_matrix(plain, name, (1, 2, 3), **overrides)
    rows = rows_of(plain.folder / f"{name} plain")
    if name == "dapo":
        assert max(row["rollout/rounds"] for row in rows) > 1, "no batch was refilled"
    if name == "adaptive KL":
        assert len({row["loss/kl_coef"] for row in rows}) > 1, "the coefficient never moved"


def test_three_ranks_with_two_prompts_and_one_micro_batch_say_so_and_have_the_same_bits(plain):
    few = {"train.prompts_per_step": 2, "train.micro_batch_tokens": 4096, "train.num_steps": 2, "evaluation.max_problems": 2}
    plain.find("few", **few, **{"monitors.console": True})
    assert set(plain.notes["few"]["micro_batches"]["update_policy"]) == {1}
    said = plain.compare("few", 3)
    assert said.count("an update has 1 micro-batch for 3 ranks, so 2 ranks will be idle") == 1
    assert "train.micro_batch_tokens (now 4096)" in said


@pytest.mark.prove
def test_an_engine_that_cannot_keep_rows_apart_says_so(plain):
    plain.find("cached", **{"sampling.engine": "cached", "monitors.console": True, "train.num_steps": 1})
    launch = run_ranks(plain.server, 2, *plain.words("cached", "cached 2"))
    assert "engine cached: what is decoded side by side can change the last bits" in launch.ranks[0].output


# -- sums in float32 ---------------------------------------------------------------------------------------------------


@pytest.mark.prove
def test_fast_sums_are_the_same_up_to_rounding(plain):
    run = plain.find("fast", **{"parallel.sums": "fast", "train.num_steps": 2})
    for size in (1, 2, 3):
        run_ranks(plain.server, size, *plain.words("fast", f"fast {size}"))
        other = plain.folder / f"fast {size}"
        norms = [[row["optim/grad_norm"] for row in rows_of(one)] for one in (run, other)]
        assert norms[0] == pytest.approx(norms[1], rel=2e-6)
        expected, found = (load_file(one / "model" / "model.safetensors") for one in (run, other))
        apart = max(float((found[name] - value).norm() / value.norm()) for name, value in expected.items())
        assert apart < 2e-6
        print(f"fast sums on {size} ranks: weights apart by {apart:.1e}")


# -- a rank that is killed ---------------------------------------------------------------------------------------------

MOMENTS = {
    "rollout": Trap("cohort.engine.local:LocalEngine.generate", 4),
    "reward": Trap("cohort.rewards.runner:RewardRunner.score", 3),
    "update": Trap("cohort.parallel.ranks:Ranks.add_up", 5),
    "after an update": Trap("cohort.training.state:TrainState.update", 3, after=True),
    "save": Trap("cohort.training.checkpoint:save", 2),
}


def kill_and_go_on(plain: Plain, size: int, then: int, traps: dict[int, list[Trap]], pause: float = 0.0) -> None:
    """Train on `size` ranks, lose one, go on with `then` (0: one plain process), and hold the run against the one that lost none."""
    run = plain.folder / "killed"
    shutil.rmtree(run, ignore_errors=True)
    words = [*plain.words("grpo", run.name), "parallel.limit_s=5"]
    launch = start_ranks(plain.server, size, *words, traps=traps)
    if pause:
        time.sleep(pause)
        launch.send(signal.SIGKILL, [size - 1])
    codes = launch.wait()
    if pause and not any(codes):  # it was faster than that: earlier, then
        kill_and_go_on(plain, size, then, traps, pause / 2)
        return
    assert -signal.SIGKILL in codes, f"{codes}\n{launch.output}"
    assert 0 not in codes
    run_ranks(plain.server, then, *(["resume", str(run)] if (run / "checkpoints").is_dir() else words))
    assert differences(run, plain.folder / "grpo plain") == []


def test_a_rank_is_killed_and_another_number_goes_on_with_the_same_bits(plain):
    plain.find("grpo", **GRPO)
    kill_and_go_on(plain, 2, 3, {1: [MOMENTS["update"]]})


@pytest.mark.prove
@pytest.mark.parametrize(("size", "then"), [(2, 0), (2, 3), (3, 2)])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_rank_is_killed_at_any_moment(plain, moment, size, then):
    plain.find("grpo", **GRPO)
    rank = 0 if moment == "save" else size - 1
    kill_and_go_on(plain, size, then, {rank: [MOMENTS[moment]]})


@pytest.mark.prove
def test_a_rank_is_killed_at_random_moments(plain):
    plain.find("grpo", **GRPO)
    for seed in range(6):
        size, then = ((2, 0), (2, 3), (3, 2))[seed % 3]
        kill_and_go_on(plain, size, then, {}, pause=random.Random(seed).uniform(0.5, 8.0))


# -- one process -------------------------------------------------------------------------------------------------------


def test_a_plain_run_knows_nothing_of_ranks(plain):
    plain.find("grpo", **GRPO)
    seen = plain.notes["grpo"]
    assert not seen["process_group"]
    ours = [
        name
        for name in seen["modules"]
        if name.startswith(("cohort.parallel", "cohort.model.sharding", "cohort.engine.vllm", "vllm"))
    ]
    assert ours == []
    assert "cohort.loop" in seen["modules"]


def test_other_threads_are_warned_of():
    [warning] = launch.describe_ranks(ALONE, "cpu", 2, True, 1)
    assert warning.startswith("warning: the run was started with 1 thread per rank and resumes with 2")
    assert "OMP_NUM_THREADS=1" in warning
    assert not list(launch.describe_ranks(ALONE, "cpu", 2, True, 2))
    assert not list(launch.describe_ranks(ALONE, "cpu", 2, False, 1))


@pytest.mark.parametrize("command", ["evaluate", "export", "compare", "algorithms", "audit", "look", "report", "recipes"])
def test_commands_of_one_process_refuse_ranks(command, monkeypatch):
    from typer.testing import CliRunner

    from cohort.cli import app

    for name, value in make_environment(1, 2, find_free_port()).items():
        monkeypatch.setenv(name, value)
    words = {
        "evaluate": ["."],
        "export": [".", "x"],
        "compare": ["a.toml"],
        "audit": ["math_answer"],
        "look": ["."],
        "report": ["."],
    }
    result = CliRunner().invoke(app, [command, *words.get(command, [])])
    assert result.exit_code == 1
    assert f"cohort {command} runs in one process" in result.output


@pytest.mark.parametrize("rank", [0, 1])
def test_a_wrong_recipe_is_told_by_one_rank_of_a_host(rank, monkeypatch):
    from typer.testing import CliRunner

    from cohort.cli import app

    for name, value in make_environment(rank, 2, find_free_port()).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    result = CliRunner().invoke(app, ["train", "group_size=-1"])
    assert result.exit_code == 1
    assert ("group_size" in result.output) == (rank == 0)
