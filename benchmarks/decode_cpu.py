"""Rollouts on a CPU: HF generate, the modules with the slot cache, and the fused decode step in PyTorch and with the compiled kernel.

    python benchmarks/decode_cpu.py [--size small|demo] [--new 128] [--repeats 5] [--threads 2]
    python benchmarks/decode_cpu.py --size smollm2 --new 32 --threads 1

Contenders take turns, so that noise of the machine affects all of them; figures are medians, and ratios are medians of the ratios within
a turn. With one thread the clock counts CPU seconds, which other processes affect little. HF generate runs in its own processes without cohort: cohort makes OpenMP threads wait without spinning, which makes HF generate a
third slower on a quiet machine and many times faster on a busy one. It runs both ways, and ratios are to the faster. Fixed: every
completion has the maximum length. Ragged: lengths are uniform from 1 to the maximum; HF generate decodes its batch until the longest row
ends, so only its number of useful tokens changes.

smollm2 has its real weights and the matrix library that a run chooses here, for HF generate too. It also shows which share of the
machine's matrix rate rollouts and training reach: the time of their products alone (same sizes, nothing between them), by theirs.
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
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

PEER = "--peer"
if PEER not in sys.argv:
    import cohort  # noqa: F401  sets the waiting policy of OpenMP, which must be set before torch is imported

import torch  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

FOLDER, LIBRARY = "DECODE_CPU_FOLDER", "DECODE_CPU_LIBRARY"
"""Environment variables for the peer, which cannot ask Cohort: the model's folder, and torch's name of the matrix library."""
SHAPES = {
    # hidden, intermediate, layers, heads, kv heads, vocabulary
    "small": (256, 704, 6, 4, 2, 64),
    "demo": (128, 384, 4, 4, 2, 20),
}
PROMPTS = {"small": (16, 8, 16), "demo": (32, 8, 16), "smollm2": (8, 8, 72)}
"""Prompts, group size, tokens per prompt."""
HF_GENERATE = ("HF generate", "HF generate, waiting without spinning")
PRODUCTS, TRAINING, TRAINING_PRODUCTS = "the products of rollouts", "training", "the products of training"
SHARES = {"native": PRODUCTS, TRAINING: TRAINING_PRODUCTS}
Rows = list[tuple[int, ...]]


def build(size: str) -> Any:
    if size not in SHAPES:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(os.environ[FOLDER], dtype=torch.float32).eval()
    hidden, intermediate, layers, heads, kv_heads, vocabulary = SHAPES[size]
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


def draw_prompts(size: str, vocabulary: int, draw: random.Random) -> Rows:
    count, _, tokens = PROMPTS[size]
    return [tuple(draw.randrange(vocabulary) for _ in range(tokens)) for _ in range(count)]


def time_work(work: Callable[[], object]) -> float:
    """Seconds: of the CPU with one thread, else of the wall clock."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    started = clock()
    work()
    return clock() - started


class Peer:
    """HF generate in another process: it decodes whenever it is sent a line, and answers with its seconds."""

    def __init__(self, size: str, new: int, **policy: str) -> None:
        command = [sys.executable, __file__, PEER, "--size", size, "--new", str(new), "--threads", str(torch.get_num_threads())]
        environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | policy
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=environment
        )

    def run(self) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print("go", file=self.process.stdin, flush=True)
        if not (answer := self.process.stdout.readline()):
            raise SystemExit("HF generate failed in its process")
        return float(answer)

    @staticmethod
    def serve(size: str, new: int) -> None:
        if library := os.environ.get(LIBRARY):
            torch.backends.mkldnn.matmul.fp32_precision = library
        model = build(size)
        _, group, prompt_tokens = PROMPTS[size]
        rows = torch.tensor(draw_prompts(size, model.config.vocab_size, random.Random(0))).repeat_interleave(group, 0)

        def generate() -> None:
            with torch.no_grad():
                tokens = model.generate(
                    rows, attention_mask=torch.ones_like(rows), do_sample=True, top_k=0, min_new_tokens=new, max_new_tokens=new
                )
            assert tokens.shape[1] == prompt_tokens + new

        for _ in sys.stdin:
            print(time_work(generate), flush=True)


def contenders(size: str, new: int, ragged: bool) -> tuple[dict[str, Callable[[], float]], int]:
    """What is timed, by name, and the useful tokens that each engine gives."""
    from cohort.engine import EngineSetup, make_requests
    from cohort.engine.local import LocalEngine
    from cohort.types import NoiseKey, Prompt, Sampling

    real = size not in SHAPES
    if real:
        from cohort.model.sources import find_folder

        os.environ[FOLDER] = str(find_folder(size))
    model = build(size)
    if real:
        choose_library(model)
    count, group, _ = PROMPTS[size]
    draw = random.Random(0)
    prompts = [Prompt(place, "", {}, ids) for place, ids in enumerate(draw_prompts(size, model.config.vocab_size, draw))]
    requests = make_requests(prompts, group)
    limits = [draw.randint(1, new) if ragged else new for _ in requests]
    limits[0] = new
    sampling = Sampling(group_size=group, temperature=1.0, max_completion_tokens=new, stop_ids=())

    def engine(kernels: str, native: bool = False) -> Callable[[], list[Any]]:
        local = LocalEngine(EngineSetup(model, lambda ids: "", slots=count * group, kernels=kernels))
        if not native:
            local.compiled = None
        elif local.compiled is None:
            raise SystemExit(f"no compiled kernel: {local.why_not_native}")

        def rollouts() -> list[Any]:
            completions = local.generate(requests, sampling, NoiseKey(0, "train", 1), limits=limits)
            assert [len(completion.token_ids) for completion in completions] == limits
            return completions

        return rollouts

    named: dict[str, Callable[[], object]] = {"native": engine("fused", native=True)}
    if real:
        named |= make_shares(model, requests, named["native"](), new)  # type: ignore[arg-type]
    else:
        named = {"modules": engine("modules"), "fused": engine("fused"), **named}
    timed = {name: lambda work=work: time_work(work) for name, work in named.items()}
    peers = {HF_GENERATE[0]: Peer(size, new).run}
    if torch.get_num_threads() > 1:
        peers[HF_GENERATE[1]] = Peer(size, new, OMP_WAIT_POLICY="PASSIVE").run
    return peers | timed, sum(limits)


def choose_library(model: Any) -> None:
    """Multiply with the library that a run would choose, in the peers too."""
    from cohort.ops.products import choose_products, use_products

    use_products(choose_products(model, torch.float32), model, "the benchmark")
    os.environ[LIBRARY] = torch.backends.mkldnn.matmul.fp32_precision


def make_shares(model: Any, requests: Sequence[Any], completions: Sequence[Any], new: int) -> dict[str, Callable[[], object]]:
    """Forward and backward over the completions, and the matrix products of this and of the rollouts by themselves."""
    from cohort.model.examples import make_examples
    from cohort.model.packing import pack
    from cohort.model.policy import Policy
    from cohort.types import Outcome, Rollout

    class Unused:
        chat_template = None

    rollouts = [
        Rollout(request.prompt, request.draw, request.sample, completion, Outcome(reward=1.0, success=None, parts={}), 0)
        for request, completion in zip(requests, completions, strict=True)
    ]
    examples = make_examples(rollouts)
    examples = replace(examples, advantages_C=torch.ones_like(examples.advantages_C))
    policy = Policy(model, Unused())
    print(policy.prepare("auto"), file=sys.stderr)
    sizes = {"max_completion_tokens": new, "micro_batch_tokens": 16384, "skip_zero_advantage": True}
    minibatch = pack(examples, aggregation="token_mean", share_prompts=policy.share_prompts, **sizes)

    def train() -> None:
        model.zero_grad()
        for micro in minibatch.micro_batches:
            (policy.compute_logprobs(micro).logprobs_M * micro.loss_weights_M).sum().backward()

    head = model.get_output_embeddings().weight
    layers = [module.weight for module in model.model.modules() if isinstance(module, torch.nn.Linear)]
    prompt_rows = sum(map(len, {request.draw: request.prompt.token_ids for request in requests}.values()))
    packed = [(weight.detach().t().contiguous(), weight is not head) for weight in (*layers, head)]

    @torch.no_grad()
    def multiply_for_rollouts() -> None:
        for rows, with_head in ((prompt_rows, False), *[(len(requests), True)] * new):
            for weight_IO, of_layer in packed:
                if of_layer or with_head:
                    torch.mm(torch.ones(rows, len(weight_IO)), weight_IO)

    @torch.no_grad()
    def multiply_for_training() -> None:
        for weight_OI in (*layers, head):
            rows = minibatch.trained_tokens if weight_OI is head else minibatch.executed_tokens
            inputs_NI, gradient_NO = torch.ones(rows, weight_OI.shape[1]), torch.ones(rows, len(weight_OI))
            torch.nn.functional.linear(inputs_NI, weight_OI)
            torch.mm(gradient_NO, weight_OI)
            torch.mm(gradient_NO.t(), inputs_NI)

    return {PRODUCTS: multiply_for_rollouts, TRAINING: train, TRAINING_PRODUCTS: multiply_for_training}


def measure(size: str, new: int, ragged: bool, repeats: int) -> dict[str, dict[str, float]]:
    named, tokens = contenders(size, new, ragged)
    seconds: dict[str, list[float]] = {name: [] for name in named}
    for turn in range(repeats + 1):
        for name, run in named.items():
            taken = run()
            if turn:  # the first one warms up
                seconds[name].append(taken)
    peers = [min(both) for both in zip(*(times for name, times in seconds.items() if name in HF_GENERATE), strict=True)]
    found: dict[str, dict[str, float]] = {}
    for name, times in seconds.items():
        found[name] = {"seconds": round(statistics.median(times), 3)}
        if name not in (PRODUCTS, TRAINING, TRAINING_PRODUCTS):
            found[name] |= {
                "tokens_per_second": round(tokens / statistics.median(times)),
                "best": round(tokens / min(times)),
                "ratio": round(statistics.median(b / t for b, t in zip(peers, times, strict=True)), 2),
            }
        if (products := seconds.get(SHARES.get(name, ""))) is not None:
            found[name]["share_of_matrix_rate"] = round(
                statistics.median(p / t for p, t in zip(products, times, strict=True)), 2
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=sorted(PROMPTS), default="small")
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument(PEER, action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    clock = "cpu" if arguments.threads == 1 else "wall"
    if arguments.peer:
        Peer.serve(arguments.size, arguments.new)
        return
    for ragged in (False, True) if arguments.size in SHAPES else (False,):
        found = measure(arguments.size, arguments.new, ragged, arguments.repeats)
        lengths = "ragged" if ragged else "fixed"
        load = round(os.getloadavg()[0], 1)
        for name, row in found.items():
            setting = {"size": arguments.size, "threads": arguments.threads, "clock": clock, "lengths": lengths, "load": load}
            print(json.dumps({**setting, "engine": name, **row}), flush=True)


if __name__ == "__main__":
    main()
