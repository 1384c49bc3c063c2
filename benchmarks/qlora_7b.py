"""Memory and tokens per second of a 4-bit base at the shape of a 7B model, compared with a bfloat16 base.

    python benchmarks/qlora_7b.py                       # both bases, one after the other; needs a GPU and bitsandbytes
    python benchmarks/qlora_7b.py --base nf4 --shape 0.5b
    python benchmarks/qlora_7b.py --shape tiny --device cpu

Random weights, made on the device. Adapters of rank 16 on every linear layer. Rollouts: 32 prompts of 128 tokens, 8 completions of 256
each. Training: forward and backward of the same tokens, 8 rows at a time, and one update.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from speed_shapes import SHAPES, BenchShape, make_random_model, make_tokenizer, write_folder

from cohort.engine import build_engine, sample_groups
from cohort.engine.protocol import EngineSetup
from cohort.model import lora
from cohort.model.examples import make_examples
from cohort.model.optim import MasterWeights, Optimizer
from cohort.model.packing import pack
from cohort.model.policy import Policy
from cohort.recipe.schema import LoraConfig, OptimizerConfig
from cohort.types import NoiseKey, Outcome, Prompt, Rollout, Sampling

GIB = 2.0**30
PROMPTS, PROMPT_TOKENS, GROUP, ROWS = 32, 128, 8, 8


def measure(base: str, shape: BenchShape, device: str, new: int, turns: int) -> dict[str, Any]:
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    found: dict[str, Any] = {"base": base, "shape": shape.name}
    with tempfile.TemporaryDirectory() as scratch:
        model = make_random_model(write_folder(shape, Path(scratch)), device, dtype, base == "nf4")
    settings = LoraConfig(rank=16, base_dtype="nf4" if base == "nf4" else "auto")
    adapter = lora.start_adapter(model, settings, 0, "random")
    weights = MasterWeights(model, dtype)
    policy = Policy(model, make_tokenizer(shape.dimensions.vocabulary), 1.0, adapter)
    found["training"] = policy.prepare("auto")
    found |= {"parameters": policy.num_parameters, "held_gib": held(device)}
    say(found)
    engine, found["engine"] = build_engine("auto", EngineSetup(model, policy.codec.decode))
    prompts = [
        Prompt(number, "", {}, tuple((7 * number + 3 * place) % 60 + 4 for place in range(PROMPT_TOKENS)))
        for number in range(PROMPTS)
    ]

    def roll(turn: int) -> Any:
        return sample_groups(engine, prompts, Sampling(GROUP, 1.0, new, ()), NoiseKey(turn, "train", 1))

    tokens = PROMPTS * GROUP * new
    groups, seconds, peak = timed(roll, turns, device)
    found |= {"rollout_tokens_per_second": tokens / seconds, "rollout_peak_gib": peak}
    say(found)
    engine.close()
    rollouts = [
        Rollout(prompt, number, sample, completion, Outcome({}, 1.0, True), 0)
        for number, (prompt, group) in enumerate(zip(prompts, groups, strict=True))
        for sample, completion in enumerate(group)
    ]
    examples = make_examples(rollouts)
    optimizer = Optimizer(weights, OptimizerConfig(learning_rate=1e-5), 100)

    def train(turn: int) -> Any:
        minibatch = pack(
            examples,
            aggregation="token_mean",
            max_completion_tokens=new,
            micro_batch_tokens=ROWS * (PROMPT_TOKENS + new),
            skip_zero_advantage=False,
            share_prompts=policy.share_prompts,
        )
        for micro in minibatch.micro_batches:
            policy.compute_logprobs(micro.to(policy.device)).logprobs_M.mean().backward()
        optimizer.clip_and_step()
        weights.drop_gradients()

    _, seconds, peak = timed(train, turns, device)
    found |= {"train_tokens_per_second": tokens / seconds, "train_peak_gib": peak}
    say(found)
    return found


def timed(work: Callable[[int], Any], turns: int, device: str) -> tuple[Any, float, float]:
    """(result, seconds of the fastest turn after a first one, most GiB in use)"""
    seconds, result = [], None
    for turn in range(turns + 1):
        if turn == 1 and device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        result = work(turn)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
        print(f"turn {turn}: {seconds[-1]:.2f} s", flush=True)
    return result, min(seconds[1:]), torch.cuda.max_memory_allocated() / GIB if device == "cuda" else 0.0


def held(device: str) -> float:
    gc.collect()
    return torch.cuda.memory_allocated() / GIB if device == "cuda" else 0.0


def say(found: dict[str, Any]) -> None:
    print(json.dumps(found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", choices=["auto", "nf4"], action="append")
    parser.add_argument("--shape", default="7b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--new", type=int, default=256, help="tokens of a completion")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    results = []
    for base in options.base or ["nf4", "auto"]:
        results.append(
            measure(base, BenchShape(options.shape, SHAPES[options.shape]), options.device, options.new, options.turns)
        )
        gc.collect()
        if options.device == "cuda":
            torch.cuda.empty_cache()
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
