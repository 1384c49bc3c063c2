"""The cost and savings of sharding on one GPU: FSDP2 in a world of one, compared with the plain run.

    python benchmarks/shard_gpu.py                                  1.5B and 7B on a GPU, every case in its own process
    python benchmarks/shard_gpu.py --shape 1.5b --cases plain,full  some of them
    python benchmarks/shard_gpu.py --shape tiny --device cpu        to check that it runs

Random weights of Qwen's shapes, made on the device; bfloat16 on a GPU. An update trains on two micro-batches of rows of 512 tokens, with
activation checkpointing at 7B. Cases: plain (own kernels), modules (of transformers), full (sharded, sums in float32), exact and
modules-exact (sums in float64; both must have the same hash after the first update), offload (slices and moments on the host).

    held_gib    after weights and optimizer are made, before any update
    peak_gib    of an update, moments and gradients included
    seconds     of an update, the fastest of three; tokens_per_second from it
    gather_s    gathering the weights for an engine, once; whole_gib: memory then

With one rank nothing is transferred, so this is the cost of slicing itself. A rank of N holds 1 / N of slices, moments and gradients, and
temporarily a whole layer, the root, or the weights of a rollout.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from speed_shapes import SHAPES, BenchShape, make_random_model, make_tokenizer, write_folder

from cohort.base.world import ALONE
from cohort.model.examples import Example
from cohort.model.optim import Adding, MasterWeights, Optimizer
from cohort.model.packing import MicroBatch, pack
from cohort.model.policy import Policy
from cohort.recipe.schema import OptimizerConfig

CASES = ("plain", "modules", "full", "modules-exact", "exact", "offload")
BY_SHAPE = {"7b": ("plain", "full"), "tiny": CASES[:-1]}
"""Where not all of them are run. At 7B float64 sums need 61 GB more, and slices on the host more than most hosts have."""
LENGTH, PROMPT, MICRO_BATCHES, UPDATES = 512, 64, 2, 3
ROWS = {"tiny": 4, "0.5b": 32, "1.5b": 32, "7b": 16}
GIB = 2.0**30


def make_micro_batches(rows: int, policy: Policy, vocabulary: int) -> list[MicroBatch]:
    draw = torch.Generator().manual_seed(0)
    trained = LENGTH - PROMPT
    examples = []
    for number in range(rows):
        ids = torch.randint(4, vocabulary, (LENGTH,), generator=draw).tolist()
        vectors: dict[str, Any] = {
            "loss_mask_T": torch.ones(trained, dtype=torch.bool),
            "advantages_T": torch.full((trained,), 1.0 if number % 2 else -1.0),
            "sampling_logprobs_T": torch.zeros(trained),
        }
        examples.append(Example(number, number, tuple(ids[:PROMPT]), tuple(ids[PROMPT:]), **vectors))
    options: dict[str, Any] = {"aggregation": "token_mean", "max_completion_tokens": trained, "skip_zero_advantage": False}
    return pack(examples, micro_batch_tokens=rows * LENGTH // MICRO_BATCHES, **options).micro_batches


def make_weights(policy: Policy, case: str, dtype: torch.dtype) -> MasterWeights:
    exact = case.endswith("exact")
    if case not in ("full", "exact", "offload"):
        return MasterWeights(policy.model, dtype, Adding(exact))
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from cohort.model.sharding import PolicyShards, ShardedWeights, Sharding

    backend = "cpu:gloo,cuda:nccl" if policy.device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    sharding = Sharding(init_device_mesh(policy.device.type, (1,)), dtype, exact=exact, offload=case == "offload", world=ALONE)
    return ShardedWeights(PolicyShards(policy, sharding), Adding(exact, sharding=sharding))


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def read_gib(device: str, *, peak: bool = False) -> float:
    if device != "cuda":
        return 0.0
    return round((torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()) / GIB, 2)


def hash_some(policy: Policy) -> str:
    """Of the last norm and of the first rows of the embedding, as they are computed with."""
    values = policy.read_weights()
    some = [values["model.norm.weight"], values["model.embed_tokens.weight"][:64]]
    return hashlib.sha256(b"".join(one.detach().float().cpu().numpy().tobytes() for one in some)).hexdigest()[:16]


def measure(case: str, shape: BenchShape, device: str) -> dict[str, Any]:
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    found: dict[str, Any] = {"shape": shape.name, "case": case, "torch": torch.__version__}
    with tempfile.TemporaryDirectory() as scratch:
        model = make_random_model(write_folder(shape, Path(scratch)), device, torch.float32)
    policy = Policy(model, make_tokenizer(shape.dimensions.vocabulary))
    weights = make_weights(policy, case, dtype)
    found["prepared"] = policy.prepare("auto" if case == "plain" else "modules", checkpointing=shape.name == "7b")
    optimizer = Optimizer(weights, OptimizerConfig(learning_rate=1e-6), 10)
    rows = ROWS[shape.name]
    micros = [micro.to(device) for micro in make_micro_batches(rows, policy, shape.dimensions.vocabulary)]
    policy.wait()
    found["held_gib"] = read_gib(device)
    seconds = []
    for _ in range(UPDATES):
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        wait(device)
        started = time.monotonic()
        for micro in micros:
            scores = policy.compute_logprobs(micro)
            (-(scores.logprobs_M * micro.advantages_M * micro.loss_weights_M).sum()).backward()
        report = optimizer.clip_and_step()
        wait(device)
        seconds.append(time.monotonic() - started)
        found.setdefault("grad_norm", report.grad_norm)
        if "hash" not in found:
            found["hash"] = hash_some(policy)
            if policy.shards is not None:
                policy.shards.free_gathered()
    found |= {"peak_gib": read_gib(device, peak=True), "seconds": round(min(seconds), 3)}
    found["tokens_per_second"] = round(rows * LENGTH / min(seconds))
    started = time.monotonic()
    policy.gather_weights()
    wait(device)
    return found | {"gather_s": round(time.monotonic() - started, 3), "whole_gib": read_gib(device)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=sorted(ROWS), default="")
    parser.add_argument("--cases", default="")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--alone", action="store_true", help="one case in this process")
    told = parser.parse_args()
    if told.alone:
        shape = BenchShape(told.shape, SHAPES[told.shape])
        print(json.dumps(measure(told.cases, shape, told.device)), flush=True)
        return
    rows = []
    for shape in [told.shape] if told.shape else ["1.5b", "7b"]:
        for case in told.cases.split(",") if told.cases else BY_SHAPE.get(shape, CASES):
            words = ["--alone", "--shape", shape, "--cases", case, "--device", told.device]
            run = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True)
            said = (run.stdout.strip() or run.stderr.strip() or "nothing").splitlines()[-1]
            row = json.loads(said) if not run.returncode else {"shape": shape, "case": case, "failed": said[-300:]}
            rows.append(row)
            print(json.dumps(row), flush=True)
    if told.output:
        told.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
