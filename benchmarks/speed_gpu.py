"""Rollouts, training and GRPO steps on one GPU, random weights of Qwen2.5's shapes, with targets for an H200.

    python benchmarks/speed_gpu.py                          all of it
    python benchmarks/speed_gpu.py --only gpu-step-0.5b     one case
    python benchmarks/speed_table.py docs/results/*.json        the table of docs/speed.md from the results

bfloat16 with float32 masters, 128 prompt tokens, 32 prompts x 8, medians of 3 after a warm-up, including prefill and the copy of results
to the host. Every group has signal, so none is skipped.
"""

from __future__ import annotations

import sys

from speed import Options
from speed_cases import SpeedCase, SpeedTarget, run_cases

SIZES = {"prompts": 32, "group": 8, "prompt_tokens": 128, "device": "cuda"}
ROLLOUT = {**SIZES, "stages": "rollout"}
TRAIN = {**SIZES, "stages": "train", "peers": "none", "micro_rows": 32}
QLORA = ("model.lora.rank=16", "model.lora.base_dtype=nf4")

CASES = (
    SpeedCase(
        "gpu-rollout-0.5b", ("0.5b",), Options(**ROLLOUT, new=512),
        (SpeedTarget("rollout", "tokens_per_second", low=110_000),),
    ),
    SpeedCase(
        "gpu-rollout-1.5b", ("1.5b",), Options(**ROLLOUT, new=512, peers="vllm"),
        (SpeedTarget("rollout", "tokens_per_second", low=55_000),),
    ),
    SpeedCase(
        "gpu-rollout-7b", ("7b",), Options(**ROLLOUT, new=256, peers="vllm"),
        (SpeedTarget("rollout", "tokens_per_second", low=26_000),),
    ),
    # 1,024 completions through 256 slots: within 25 % of the rate at a fixed length, which the case above states.
    SpeedCase(
        "gpu-rollout-0.5b-ragged", ("0.5b",),
        Options(**{**ROLLOUT, "prompts": 128}, new=512, lengths="ragged", slots=256, peers="vllm"),
        (SpeedTarget("rollout", "tokens_per_second", low=0.75 * 110_000),),
    ),
    SpeedCase("gpu-train-0.5b", ("0.5b",), Options(**TRAIN, new=512), (SpeedTarget("train", "mfu", low=0.36),)),
    SpeedCase("gpu-train-1.5b", ("1.5b",), Options(**TRAIN, new=512), (SpeedTarget("train", "mfu", low=0.48),)),
    SpeedCase(
        "gpu-train-7b", ("7b", "optimizer.state_bits=8"), Options(**{**TRAIN, "micro_rows": 24}, new=512),
        (SpeedTarget("train", "mfu", low=0.50),),
    ),
    SpeedCase(
        "gpu-train-7b-lora", ("7b", "model.lora.rank=16"), Options(**{**TRAIN, "micro_rows": 8}, new=256),
        (SpeedTarget("train", "mfu", low=0.42),),
    ),
    SpeedCase(
        "gpu-train-7b-lora-wide", ("7b", "model.lora.rank=16"), Options(**TRAIN, new=256),
        (SpeedTarget("train", "mfu", low=0.48),),
    ),
    SpeedCase(
        "gpu-rollout-7b-lora", ("7b", "model.lora.rank=16"), Options(**ROLLOUT, new=256, peers="none"),
        (SpeedTarget("rollout", "tokens_per_second", low=28_000),),
    ),
    # The same over a base in 4 bits: what it saves, and what taking the weights back costs. Needs bitsandbytes.
    SpeedCase("gpu-rollout-7b-qlora", ("7b", *QLORA), Options(**ROLLOUT, new=256, peers="none")),
    SpeedCase("gpu-train-7b-qlora", ("7b", *QLORA), Options(**{**TRAIN, "micro_rows": 8}, new=256)),
    SpeedCase(
        "gpu-step-0.5b", ("0.5b",), Options(**SIZES, new=512, stages="step"),
        (
            SpeedTarget("step", "seconds", high=2.5),
            SpeedTarget("step", "ratio:trl", low=6.4),
            SpeedTarget("step", "first_step_after", high=60.0),
            SpeedTarget("step", "mismatch_mean", high=1e-2),
            SpeedTarget("step", "peak_bytes", high=61 * 2**30),
        ),
    ),
    # The same step in micro-batches twice as large: fewer launches for the host, more memory.
    SpeedCase(
        "gpu-step-0.5b-wide", ("0.5b",), Options(**SIZES, new=512, stages="step", micro_rows=32, peers="none"),
        (SpeedTarget("step", "seconds", high=2.5), SpeedTarget("step", "mismatch_mean", high=1e-2)),
    ),
    SpeedCase(
        "gpu-train-1.5b-long", ("1.5b",),
        Options(**{**TRAIN, "prompts": 2, "group": 4, "micro_rows": 1}, new=16_384, repeats=1),
        (SpeedTarget("train", "tokens_per_second", low=1.0),),
    ),
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(run_cases(CASES, __doc__))
