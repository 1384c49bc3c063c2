"""Whole runs with parallel.shard = "full": the hash of one process with the modules of transformers, at every number of ranks."""

from __future__ import annotations

import signal
import time

import pytest
from ranks_tools import Launch, hash_weights, run_ranks, start_ranks

from session_tools import fork_server, write_recipe

FULL = "parallel.shard=full"
SMALL = {
    "cold_start.num_steps": 3,
    "cold_start.batch_size": 12,
    "evaluation.samples": 0,
    "train.num_steps": 2,
    "train.prompts_per_step": 5,
    "train.minibatches_per_step": 2,
    "train.passes_per_step": 1,
    "train.micro_batch_tokens": 48,
    "model.kernels": "modules",
}
WARM = {"cold_start.num_steps": 24, "cold_start.batch_size": 64}
"""Until some completions are right."""
ALGORITHMS = {
    "ppo": {"algorithm.name": "ppo"},
    "dapo": {"algorithm.name": "dapo", **WARM},
    "lora": {"model.lora.rank": 4, "model.lora.merge": True, "algorithm.reference_every": 1},
    "checkpointed layers": {"train.activation_checkpointing": True, "algorithm.reference_decay": 0.5},
    "reward model": {"reward_model.iterations": 1, "reward_model.prompts": 6, **WARM},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with fork_server(tmp_path_factory.mktemp("sharded_run")) as server:
        yield server


def train(server, name: str, size: int, **overrides: object) -> str:
    recipe = write_recipe(server.folder / f"{name}.toml", **SMALL | overrides)
    run = f"{name}-{size}".replace(" ", "-")
    words = ["train", recipe, f"runs_folder={server.folder / 'runs'}", f"name={run}", *([FULL] if size else [])]
    run_ranks(server, size, *words)
    return hash_weights(server.folder / "runs" / run)


@pytest.mark.prove
def test_two_ranks_that_share_the_model_out_end_with_the_bits_of_one_process(server):
    """Four completions in a group and five prompts in micro-batches of few tokens: the ranks do not have equally many of them."""
    assert train(server, "grpo", 2) == train(server, "grpo", 0)


def test_alone_it_is_refused_with_the_command(server):
    recipe = write_recipe(server.folder / "alone.toml", **SMALL)
    launch = Launch([server.run("train", recipe, f"runs_folder={server.folder / 'runs'}", "name=alone", FULL)])
    assert launch.wait() == [1]
    assert "parallel.shard" in launch.output
    assert "torchrun --nproc-per-node" in launch.output


@pytest.mark.prove
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_model_of_a_run_is_shared_out(server, name):
    plain = train(server, name, 0, **ALGORITHMS[name])
    assert [train(server, name, size, **ALGORITHMS[name]) for size in (1, 2, 3)] == [plain] * 3


@pytest.mark.prove
def test_killed_on_two_ranks_it_goes_on_with_three(server):
    options = {"train.num_steps": 4, "checkpoints.every_steps": 1, "parallel.limit_s": 10}
    plain = train(server, "killed", 0, **options)
    recipe = write_recipe(server.folder / "killed.toml", **SMALL | options)
    run = server.folder / "runs" / "killed-2"
    launch = start_ranks(server, 2, "train", recipe, f"runs_folder={run.parent}", f"name={run.name}", FULL)
    while not (run / "checkpoints" / "step-1").is_dir():
        assert not launch.look(), launch.output
        time.sleep(0.01)
    launch.send(signal.SIGKILL, [1])
    assert launch.wait() == [1, -signal.SIGKILL]
    run_ranks(server, 3, "resume", run)
    assert hash_weights(run) == plain
