"""Tokens per second of the engines on one model, in turn: the cost of falling back from one engine to the next.

    python benchmarks/tiers.py [--shape tiny|small|0.5b] [--families qwen2 qwen3_next] [--new 64] [--repeats 3] [--json OUT]

All engines sample the same requests with the same noise and without stops, so they decode the same number of tokens. `hf`, which decodes
one completion at a time, gets only `--hf-rows` of them. Prompts have different lengths. Ratios are medians of the ratios within a turn.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from cohort.engine import build_engine, make_requests
from cohort.engine.protocol import EngineSetup
from cohort.errors import EngineError
from cohort.types import NoiseKey, Prompt, Sampling

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
    "small": {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32},
    "0.5b": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "head_dim": 64},
}  # fmt: skip
VOCABULARY = {"tiny": 64, "small": 512, "0.5b": 151936}
DELTA = {"linear_num_key_heads": 8, "linear_num_value_heads": 16, "linear_key_head_dim": 64, "linear_value_head_dim": 64}
SMALL_DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}


def build(family: str, shape: str, device: torch.device) -> Any:
    sizes = SHAPES[shape] | {
        "vocab_size": VOCABULARY[shape],
        "max_position_embeddings": 4096,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    if family in ("qwen3_next", "qwen3_5_text"):
        sizes |= (DELTA if shape == "0.5b" else SMALL_DELTA) | (EXPERTS if family == "qwen3_next" else {})
    if family == "mamba2":
        inner = 2 * sizes["hidden_size"]
        sizes |= {"head_dim": 32, "num_heads": inner // 32, "state_size": 32, "n_groups": 1}
    torch.manual_seed(0)
    with device:
        model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**sizes)).eval()
    return model.to(torch.bfloat16 if device.type == "cuda" else torch.float32)


def measure(family: str, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    model = build(family, options.shape, device)
    draw = random.Random(0)
    low, high = options.prompt
    prompts = [
        Prompt(n, "", {}, tuple(draw.randrange(3, VOCABULARY[options.shape]) for _ in range(draw.randint(low, high))))
        for n in range(options.prompts)
    ]
    engines, refused = {}, {}
    for name in ("local", "cached", "hf"):
        try:
            engines[name] = build_engine(name, EngineSetup(model, lambda ids: ""))[0]
        except EngineError as problem:
            refused[name] = str(problem)
    wanted = Sampling(options.group, 1.0, options.new, ())
    speeds: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(options.repeats + 1):
        for name, engine in engines.items():
            requests = make_requests(prompts, options.group)
            if name == "hf":
                requests = requests[: options.hf_rows]
            started = time.perf_counter()
            found = engine.generate(requests, wanted, NoiseKey(turn, "train", 1))
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn:  # the first one compiles and captures
                speeds[name].append(sum(len(one.token_ids) for one in found) / (time.perf_counter() - started))
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    ratios = {
        f"cached / {other}": statistics.median(a / b for a, b in zip(speeds["cached"], speeds[other], strict=True))
        for other in speeds
        if other != "cached" and "cached" in speeds
    }
    parameters = sum(value.numel() for value in model.parameters())
    row = {
        "family": family,
        "parameters": parameters,
        "tokens_per_second": medians,
        "turns": speeds,
        "ratios": ratios,
        "refused": refused,
    }
    print(
        f"{family}, {parameters / 1e6:.1f} M parameters, {options.prompts} x {options.group} completions of {options.new} tokens"
    )
    for name, value in medians.items():
        print(f"  {name:7} {value:10.1f} tokens/s")
    for name, ratio in ratios.items():
        print(f"  {name}: {ratio:.2f}")
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--families", nargs="+", default=["qwen2", "qwen3_next"])
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--prompt", type=int, nargs=2, default=(8, 32), metavar=("LEAST", "MOST"))
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--hf-rows", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = [measure(family, options, device) for family in options.families]
    if options.json:
        about = {"device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu", "shape": options.shape}
        options.json.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
