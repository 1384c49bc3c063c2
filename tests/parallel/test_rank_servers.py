"""Several trainers and several servers: the main rank pushes, all ranks ask, and the bits are those of one process.

The servers are stubs (tests/vllm_servers/stub.py), which sample a completion alike whoever asks for it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from ranks_tools import hash_weights, run_ranks

from session_tools import fork_server, write_recipe

sys.path.append(str(Path(__file__).parents[1] / "vllm_servers"))
from stub import run_stubs

SMALL = {
    "cold_start.num_steps": 12,
    "evaluation.samples": 0,
    "train.num_steps": 3,
    "train.prompts_per_step": 5,
    "train.minibatches_per_step": 2,
    "train.passes_per_step": 1,
    "train.micro_batch_tokens": 48,
    "model.kernels": "modules",
    "vllm.wait_s": 20,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with fork_server(tmp_path_factory.mktemp("servers")) as server:
        yield server


@pytest.fixture(scope="module")
def stubs(server):
    from cohort.recipe.file import load_recipe
    from cohort.recipe.values import Materials
    from cohort.training import build

    recipe = load_recipe(write_recipe(server.folder / "plain.toml"))
    policy = build.load_policy(recipe, build.load_data(recipe, Materials()))
    with run_stubs(policy.model, 2) as stubs:
        yield stubs


def train(server, stubs, name, size, *words, **overrides):
    urls = [stub.url for stub in stubs]
    recipe = write_recipe(server.folder / f"{name}.toml", **SMALL | {"sampling.servers": urls} | overrides)
    run_ranks(server, size, "train", recipe, f"runs_folder={server.folder / 'runs'}", f"name={name}", *words)
    return hash_weights(server.folder / "runs" / name)


@pytest.mark.prove
def test_two_trainers_on_two_servers_end_with_the_bits_of_one(server, stubs):
    alone = train(server, stubs, "alone", 0)
    for stub in stubs:
        stub.calls.clear()
    assert train(server, stubs, "two", 2) == alone
    pushes = [stub.list_paths().count("/finish_weight_update") for stub in stubs]
    assert pushes == [4, 4]  # by the main rank alone: before the cold start, after it, and after each step but the last
    assert all(stub.list_asked() for stub in stubs)


@pytest.mark.prove
@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("shared out", {}),
        ("lora", {"model.lora.rank": 4}),
        ("ahead", {"ahead.lag": 1}),
        ("by files", {"vllm.push": "files"}),
    ],
)
def test_trainers_that_share_the_model_out_push_it_whole(server, stubs, name, overrides):
    name = name.replace(" ", "-")
    alone = train(server, stubs, f"{name}-alone", 0, **overrides)
    assert train(server, stubs, f"{name}-two", 2, "parallel.shard=full", **overrides) == alone
