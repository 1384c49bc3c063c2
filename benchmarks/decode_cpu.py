"""Rollouts on a CPU: HF generate, the modules over the slot cache, the fused decode step in PyTorch, and with the compiled
kernel, in one process, in turn.

    python benchmarks/decode_cpu.py [--size small|demo] [--new 128] [--repeats 5] [--threads 2]

Contenders take turns, so that whatever else the machine does meets all of them; the figures are medians, and the ratios are
medians of the ratios within a turn. On a busy machine `cpu_ratio` is the one to trust: seconds of processor time, which do not
count waiting for a core (and not waiting for the other thread either). Fixed: every completion has the most tokens. Ragged: lengths are uniform from 1 to the
most (mean one half); HF generate decodes its batch until the longest row is over, so only its useful tokens change.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable

import cohort  # noqa: F401  sets the waiting policy of OpenMP, which must be set before torch is imported

import torch  # isort: skip
from transformers import LlamaConfig, LlamaForCausalLM  # isort: skip

from cohort.rollout.local_engine import LocalEngine
from cohort.types import NoiseKey, Prompt, Sampling

SHAPES = {
    # hidden, intermediate, layers, heads, kv heads, vocabulary; prompts x group
    "small": ((256, 704, 6, 4, 2, 64), (16, 8)),
    "demo": ((128, 384, 4, 4, 2, 20), (32, 8)),
}
PROMPT_TOKENS = 16


def build(size: str) -> LlamaForCausalLM:
    hidden, intermediate, layers, heads, kv_heads, vocabulary = SHAPES[size][0]
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=hidden,
            intermediate_size=intermediate,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            vocab_size=vocabulary,
            max_position_embeddings=4096,
            eos_token_id=None,
            pad_token_id=0,
        )
    ).eval()


def contenders(size: str, new: int, ragged: bool) -> tuple[dict[str, Callable[[], object]], int]:
    """What is timed, by name, and the useful tokens that each of them gives."""
    model, (prompt_count, group) = build(size), SHAPES[size][1]
    draw = random.Random(0)
    vocabulary = model.config.vocab_size
    prompts = [
        Prompt(number, "", {}, tuple(draw.randrange(vocabulary) for _ in range(PROMPT_TOKENS)))
        for number in range(prompt_count)
    ]
    limits = [[draw.randint(1, new) if ragged else new for _ in range(group)] for _ in prompts]
    limits[0][0] = new
    sampling = Sampling(group_size=group, temperature=1.0, max_completion_tokens=new, stop_ids=())
    rows = torch.tensor([prompt.token_ids for prompt in prompts]).repeat_interleave(group, 0)

    def generate() -> object:
        with torch.no_grad():
            tokens = model.generate(
                rows, attention_mask=torch.ones_like(rows), do_sample=True, top_k=0, min_new_tokens=new, max_new_tokens=new
            )
        assert tokens.shape[1] == PROMPT_TOKENS + new
        return tokens

    def engine(kernels: str, native: bool = False) -> Callable[[], object]:
        local = LocalEngine(model, lambda ids: "", slots=prompt_count * group, kernels=kernels)
        if not native:
            local.native = None
        elif local.native is None:
            raise SystemExit(f"no compiled kernel: {local.why_not_native}")

        def rollouts() -> object:
            groups = local.generate(prompts, sampling, NoiseKey(0, "train", 1), limits=limits)
            assert [[len(completion.token_ids) for completion in completions] for completions in groups] == limits
            return groups

        return rollouts

    named = {
        "HF generate": generate,
        "modules": engine("modules"),
        "fused": engine("fused"),
        "native": engine("fused", native=True),
    }
    return named, sum(map(sum, limits))


def measure(size: str, new: int, ragged: bool, repeats: int) -> dict[str, dict[str, float]]:
    named, tokens = contenders(size, new, ragged)
    seconds: dict[str, list[float]] = {name: [] for name in named}
    processor: dict[str, list[float]] = {name: [] for name in named}
    for turn in range(repeats + 1):
        for name, run in named.items():
            started, busy = time.perf_counter(), time.process_time()
            run()
            if turn:  # the first one warms up
                seconds[name].append(time.perf_counter() - started)
                processor[name].append(time.process_time() - busy)

    def ratio(times: dict[str, list[float]], name: str) -> float:
        return round(statistics.median(b / t for b, t in zip(times["HF generate"], times[name], strict=True)), 2)

    return {
        name: {
            "tokens_per_second": round(tokens / statistics.median(times)),
            "best": round(tokens / min(times)),
            "ratio": ratio(seconds, name),
            "cpu_ratio": ratio(processor, name),
        }
        for name, times in seconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=sorted(SHAPES), default="small")
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for ragged in (False, True):
        found = measure(arguments.size, arguments.new, ragged, arguments.repeats)
        lengths = "ragged" if ragged else "fixed"
        load = round(os.getloadavg()[0], 1)
        for name, row in found.items():
            setting = {"size": arguments.size, "threads": arguments.threads, "lengths": lengths, "load": load}
            print(json.dumps({**setting, "engine": name, **row}), flush=True)


if __name__ == "__main__":
    main()
