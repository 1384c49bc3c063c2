"""With train.deterministic two runs on CUDA, and one that was killed and resumed, end with the same bits.

Every run has a process of its own: cuBLAS reads its environment variable when CUDA starts.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

from cohort.ops.determinism import VARIABLE
from session_tools import Trap, differences, fork_server, write_recipe

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

WIDER = {
    "model.device": "cuda",
    "model.scratch.hidden_size": 256,
    "model.scratch.intermediate_size": 512,
    "model.scratch.num_heads": 4,
    "model.scratch.num_kv_heads": 2,
    "train.deterministic": True,
    "cold_start.learning_rate": 3e-3,
}
"""Heads of 64, which every attention kernel takes."""


@pytest.fixture(scope="module", params=["bfloat16", "float32", "bfloat16, 8 bits"])
def world(request, tmp_path_factory):
    """(fork server, recipe file, folder for runs, an uninterrupted run)."""
    folder = tmp_path_factory.mktemp("deterministic")
    dtype, _, bits = request.param.partition(", ")
    recipe = write_recipe(folder / "tiny.toml", **WIDER, **{"model.dtype": dtype, "optimizer.state_bits": 8 if bits else 32})
    with fork_server(folder) as server:
        child = server.run("train", recipe, "name=whole", f"runs_folder={folder}")
        assert child.wait(300) == 0, child.output
        yield server, recipe, folder, folder / "whole"


def test_two_runs_are_equal(world):
    server, recipe, folder, whole = world
    child = server.run("train", recipe, "name=again", f"runs_folder={folder}")
    assert child.wait(300) == 0, child.output
    assert differences(folder / "again", whole) == []


def test_a_killed_run_ends_as_the_whole_one(world):
    """Killed inside the cold start and inside a step, resumed each time."""
    server, recipe, folder, whole = world
    run = folder / "killed"
    shutil.rmtree(run, ignore_errors=True)
    command: list[object] = ["train", recipe, f"name={run.name}", f"runs_folder={folder}"]
    for call in (9, 24 + 6 + 2):
        child = server.run(*command, traps=[Trap("cohort.model.optim:Optimizer.clip_and_step", call)])
        assert child.wait(300) < 0, child.output
        command = ["resume", run]
    child = server.run("resume", run)
    assert child.wait(300) == 0, child.output
    assert differences(run, whole) == []


PARTS = """
import hashlib, json, sys
import torch
from cohort.algorithms.regions import sum_over_rows
from cohort.ops.attention import attend_causally
from cohort.ops.determinism import deterministic

def digest(*tensors):
    return hashlib.sha256(b"".join(tensor.float().cpu().numpy().tobytes() for tensor in tensors)).hexdigest()

def random(*shape, seed, dtype=torch.bfloat16):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to("cuda", dtype).requires_grad_()

def attention(dtype):
    query, key, value = (random(2, heads, 2048, 64, seed=heads, dtype=dtype) for heads in (8, 2, 2))
    out = attend_causally(query, key, value, 0.125, None, 0.0)
    out.backward(random(*out.shape, seed=5, dtype=dtype).detach())
    return digest(out.detach(), query.grad, key.grad, value.grad)

def embedding():
    weight = random(300, 64, seed=1)
    ids = torch.randint(300, (50_000,), generator=torch.Generator().manual_seed(2)).cuda()
    (torch.nn.functional.embedding(ids, weight).float() * random(50_000, 64, seed=3).detach().float()).sum().backward()
    return digest(weight.grad)

def rows():
    values = random(100_000, seed=4, dtype=torch.float32)
    row = torch.randint(16, (100_000,), generator=torch.Generator().manual_seed(6)).cuda()
    sums = sum_over_rows(values, row, 16)
    (sums * random(100_000, seed=7, dtype=torch.float32).detach()).sum().backward()
    return digest(sums.detach(), values.grad)

with deterministic(sys.argv[1] == "on"):
    parts = {"bfloat16 attention": lambda: attention(torch.bfloat16), "float32 attention": lambda: attention(torch.float32),
             "embedding": embedding, "sums over rows": rows}
    print(json.dumps({name: sorted({part() for _ in range(20)}) for name, part in parts.items()}))
"""


def digests(mode: str) -> dict[str, list[str]]:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run([sys.executable, "-c", PARTS, mode], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_parts_of_training_give_one_result():
    """Twenty backwards of long attention, of an embedding and of sums over rows: one digest each, the same in two processes."""
    first, second = digests("on"), digests("on")
    assert {name: len(found) for name, found in first.items()} == dict.fromkeys(first, 1)
    assert first == second
    without = {name: len(found) for name, found in digests("off").items()}
    print(f"different results in twenty without it: {without}")  # shown with -s: what the switch is for
