"""Rollouts on a CPU: HF generate, the modules with the slot cache, and the fused decode step in PyTorch and with the compiled kernel.

    python benchmarks/decode_cpu.py [--size small|demo] [--new 128] [--repeats 5] [--threads 2]

Contenders take turns, so that noise of the machine affects all of them; figures are medians, and ratios are medians of the ratios within
a turn. HF generate runs in its own processes without cohort: cohort makes OpenMP threads wait without spinning, which makes HF generate a
third slower on a quiet machine and many times faster on a busy one. It runs both ways, and ratios are to the faster. Fixed: every
completion has the maximum length. Ragged: lengths are uniform from 1 to the maximum; HF generate decodes its batch until the longest row
ends, so only its number of useful tokens changes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

PEER = "--peer"
if PEER not in sys.argv:
    import cohort  # noqa: F401  sets the waiting policy of OpenMP, which must be set before torch is imported

import torch  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

SHAPES = {
    # hidden, intermediate, layers, heads, kv heads, vocabulary; prompts x group
    "small": ((256, 704, 6, 4, 2, 64), (16, 8)),
    "demo": ((128, 384, 4, 4, 2, 20), (32, 8)),
}
PROMPT_TOKENS = 16
HF_GENERATE = ("HF generate", "HF generate, waiting without spinning")


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


def draw_prompts(size: str, draw: random.Random) -> list[tuple[int, ...]]:
    vocabulary, prompt_count = SHAPES[size][0][5], SHAPES[size][1][0]
    return [tuple(draw.randrange(vocabulary) for _ in range(PROMPT_TOKENS)) for _ in range(prompt_count)]


class Peer:
    """HF generate in another process: it decodes whenever it is sent a line, and answers with one."""

    def __init__(self, size: str, new: int, **policy: str) -> None:
        command = [sys.executable, __file__, PEER, "--size", size, "--new", str(new), "--threads", str(torch.get_num_threads())]
        environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | policy
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment
        )

    def run(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print("go", file=self.process.stdin, flush=True)
        if self.process.stdout.readline() != "done\n":
            raise SystemExit("HF generate failed in its process")

    @staticmethod
    def serve(size: str, new: int) -> None:
        model = build(size)
        rows = torch.tensor(draw_prompts(size, random.Random(0))).repeat_interleave(SHAPES[size][1][1], 0)
        for _ in sys.stdin:
            with torch.no_grad():
                tokens = model.generate(
                    rows, attention_mask=torch.ones_like(rows), do_sample=True, top_k=0, min_new_tokens=new, max_new_tokens=new
                )
            assert tokens.shape[1] == PROMPT_TOKENS + new
            print("done", flush=True)


def contenders(size: str, new: int, ragged: bool) -> tuple[dict[str, Callable[[], object]], int]:
    """What is timed, by name, and the useful tokens that each of them gives."""
    from cohort.engine import EngineSetup, make_requests
    from cohort.engine.local import LocalEngine
    from cohort.types import NoiseKey, Prompt, Sampling

    model, (prompt_count, group) = build(size), SHAPES[size][1]
    draw = random.Random(0)
    prompts = [Prompt(number, "", {}, token_ids) for number, token_ids in enumerate(draw_prompts(size, draw))]
    requests = make_requests(prompts, group)
    limits = [draw.randint(1, new) if ragged else new for _ in requests]
    limits[0] = new
    sampling = Sampling(group_size=group, temperature=1.0, max_completion_tokens=new, stop_ids=())

    def engine(kernels: str, native: bool = False) -> Callable[[], object]:
        local = LocalEngine(EngineSetup(model, lambda ids: "", slots=prompt_count * group, kernels=kernels))
        if not native:
            local.native = None
        elif local.native is None:
            raise SystemExit(f"no compiled kernel: {local.why_not_native}")

        def rollouts() -> object:
            completions = local.generate(requests, sampling, NoiseKey(0, "train", 1), limits=limits)
            assert [len(completion.token_ids) for completion in completions] == limits
            return completions

        return rollouts

    named = {
        HF_GENERATE[0]: Peer(size, new).run,
        HF_GENERATE[1]: Peer(size, new, OMP_WAIT_POLICY="PASSIVE").run,
        "modules": engine("modules"),
        "fused": engine("fused"),
        "native": engine("fused", native=True),
    }
    return named, sum(limits)


def measure(size: str, new: int, ragged: bool, repeats: int) -> dict[str, dict[str, float]]:
    named, tokens = contenders(size, new, ragged)
    seconds: dict[str, list[float]] = {name: [] for name in named}
    for turn in range(repeats + 1):
        for name, run in named.items():
            started = time.perf_counter()
            run()
            if turn:  # the first one warms up
                seconds[name].append(time.perf_counter() - started)
    peers = [min(both) for both in zip(*(seconds[name] for name in HF_GENERATE), strict=True)]
    return {
        name: {
            "tokens_per_second": round(tokens / statistics.median(times)),
            "best": round(tokens / min(times)),
            "ratio": round(statistics.median(b / t for b, t in zip(peers, times, strict=True)), 2),
        }
        for name, times in seconds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=sorted(SHAPES), default="small")
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(PEER, action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.peer:
        Peer.serve(arguments.size, arguments.new)
        return
    for ragged in (False, True):
        found = measure(arguments.size, arguments.new, ragged, arguments.repeats)
        lengths = "ragged" if ragged else "fixed"
        load = round(os.getloadavg()[0], 1)
        for name, row in found.items():
            setting = {"size": arguments.size, "threads": arguments.threads, "lengths": lengths, "load": load}
            print(json.dumps({**setting, "engine": name, **row}), flush=True)


if __name__ == "__main__":
    main()
