"""Peak memory of PPO, GRPO and DPO: the same model, the same rows, the same micro-batches; only the algorithm differs.

    python benchmarks/memory.py --device cpu                      about 25 M parameters in float32
    python benchmarks/memory.py --device cuda --output memory.json   about 500 M parameters in bfloat16

Every method is a run in its own process, through `cohort.session.start`, ended after the last step without saving. Groups have two
completions, because DPO trains on two of each group, so all methods train on the same number of rows. The reward is a hash of the completion: nearly every group differs, nothing is left out, nothing is learned.
The model is built here with a character tokenizer; its vocabulary is tiny, so the logits that weigh heavily in models with a
vocabulary of 150,000 tokens do not count here. Offline pairs have completions of the full length; sampled ones stop by chance.

The columns (bytes of distinct storages):

    weights      parameters of the policy, in the dtype they are computed in
    masters      their float32 copies in the optimizer; 0 where parameters are float32 already
    moments      both of AdamW
    gradients    as passed to the optimizer, in float32, or in float64 if parallel.sums are exact
    reference    the frozen copy for the KL (DPO: for its implicit reward)
    critic       PPO's second network: weights, masters, moments and gradients together
    activations  peak of the update minus the above: activations, and temporary buffers
    KV cache     of the rollout, freed before the update

On CUDA the peak is torch.cuda.max_memory_allocated. On a CPU it is measured twice: the peak resident set minus the resident set after
all imports, and, in a second process, the sum of the storages of all live tensors, counted at every operation. Freed blocks above 128 KiB
are returned to the system (MALLOC_MMAP_THRESHOLD_), so that the two can be compared.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CHARACTERS = "\n+0123456789=>"
GROUP_SIZE = 2


@dataclass(frozen=True)
class Size:
    scratch: dict[str, int]
    prompts_per_step: int
    max_completion_tokens: int
    micro_batch_tokens: int


SIZES = {
    "cpu": Size(
        {
            "hidden_size": 512,
            "intermediate_size": 1536,
            "num_layers": 8,
            "num_heads": 8,
            "num_kv_heads": 4,
            "max_positions": 128,
        },
        prompts_per_step=8,
        max_completion_tokens=48,
        micro_batch_tokens=256,
    ),
    "cuda": Size(
        {
            "hidden_size": 1536,
            "intermediate_size": 4096,
            "num_layers": 20,
            "num_heads": 12,
            "num_kv_heads": 4,
            "max_positions": 512,
        },
        prompts_per_step=64,
        max_completion_tokens=240,
        micro_batch_tokens=4096,
    ),
}

METHODS: dict[str, dict[str, Any]] = {
    "ppo": {"name": "ppo"},
    "ppo_no_reference": {"name": "ppo", "kl_coef": 0.0},
    "grpo": {"name": "grpo"},
    "grpo_no_reference": {"name": "grpo", "kl_coef": 0.0},
    "dpo_start": {"name": "dpo", "data": "start"},
    "dpo_pairs": {"name": "dpo", "data": "pairs"},
}
"""Method -> its [algorithm] section."""

HELD = ("weights", "masters", "moments", "gradients", "reference", "critic")


def varied(completions: Sequence[Any], **columns: Any) -> list[float]:
    """A reward in [0, 1) that differs between different completions and cannot be learned."""
    digests = [hashlib.blake2b(str(completion).encode(), digest_size=8).digest() for completion in completions]
    return [int.from_bytes(digest, "big") / 2**64 for digest in digests]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=sorted(SIZES), help="where the runs take place")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="default: all of them")
    parser.add_argument("--steps", type=int, default=2, help="the moments of AdamW exist from the second step on")
    parser.add_argument("--output", type=Path, help="also write the figures as JSON")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="override of the recipe"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        return measure(Order(**json.loads(chosen.child)))
    if not chosen.device:
        parser.error("--device: choose cpu or cuda")
    if chosen.steps < 2:
        parser.error("--steps: at least 2, since the moments of AdamW exist from the second step on")
    figures: dict[str, Any] = {}
    document = {"device": chosen.device, "steps": chosen.steps, "overrides": chosen.overrides, "methods": figures}
    for method in chosen.methods:
        started = time.monotonic()
        figures[method] = measured_apart(method, chosen)
        state = figures[method].get("error") or f"{time.monotonic() - started:.0f} s"
        print(f"{method}: {state}", file=sys.stderr, flush=True)
        document["ratios"] = ratios(figures)
        if chosen.output:  # after every method: a benchmark that is stopped keeps what it measured
            chosen.output.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(table(document))
    return 1 if any("error" in figure for figure in figures.values()) else 0


# -- one process per measurement ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    """What a child process is to measure."""

    method: str
    device: str
    gauge: str
    """"rss", "tensors" or "cuda"."""
    steps: int
    overrides: list[str]
    folder: str
    """For the run, the pairs and the result."""

    @property
    def result(self) -> Path:
        return Path(self.folder) / f"{self.method}-{self.gauge}.json"


def measured_apart(method: str, chosen: argparse.Namespace) -> dict[str, Any]:
    """All gauges of one method, each in a fresh process. This one imports no torch: a child would inherit its peak."""
    figure: dict[str, Any] = {}
    for gauge in ("tensors", "rss") if chosen.device == "cpu" else ("cuda",):
        with tempfile.TemporaryDirectory(prefix="cohort-memory-") as folder:
            order = Order(method, chosen.device, gauge, chosen.steps, chosen.overrides, folder)
            paths = [str(ROOT / "benchmarks"), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
            environment = os.environ | {
                "PYTHONPATH": os.pathsep.join(path for path in paths if path),
                "MALLOC_MMAP_THRESHOLD_": str(128 * 1024),
                "TOKENIZERS_PARALLELISM": "false",
            }
            command = [sys.executable, str(Path(__file__).resolve()), "--child", json.dumps(asdict(order))]
            ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if ended.returncode or not order.result.exists():
                lines = (ended.stderr or ended.stdout).strip().splitlines()
                return {"error": lines[-1] if lines else f"exit code {ended.returncode}"}
            figure |= json.loads(order.result.read_text(encoding="utf-8"))
    return figure


def measure(order: Order) -> int:
    import_everything()
    gc.collect()
    gauge = GAUGES[order.gauge]()
    watched = Watched(Stages(gauge))
    watch_the_run(watched)
    from cohort.session import start

    with gauge.watching(), contextlib.suppress(Trained):
        start(make_recipe(order))
    if not watched.finished:
        raise SystemExit("the run ended without training")
    order.result.write_text(json.dumps(gauge.figure(watched)), encoding="utf-8")
    return 0


def import_everything() -> None:
    """What a run imports on its way, now, so that it is not counted as the run's."""
    import torch
    import transformers.models.llama.modeling_llama  # noqa: F401

    # The matrix library and autograd allocate what they keep with their first use.
    torch.nn.Linear(64, 64)(torch.zeros(64, 64)).sum().backward()


def make_recipe(order: Order) -> Any:
    from cohort.recipe.file import assign, build_recipe, parse_value

    size = SIZES[order.device]
    completions = size.prompts_per_step * GROUP_SIZE
    tree: dict[str, Any] = {
        "name": order.method,
        "runs_folder": order.folder,
        "model": {"source": "scratch", "device": order.device, "scratch": {**size.scratch, "characters": CHARACTERS}},
        "prompts": {"source": "task:column_addition", "args": {"count": 16 * size.prompts_per_step}, "max_prompt_tokens": 16},
        "rewards": [{"function": "memory:varied"}],
        "algorithm": METHODS[order.method],
        "sampling": {"max_completion_tokens": size.max_completion_tokens, "slots": completions},
        "train": {
            "num_steps": order.steps,
            "prompts_per_step": size.prompts_per_step,
            "group_size": GROUP_SIZE,
            "micro_batch_tokens": size.micro_batch_tokens,
        },
        "evaluation": {"samples": 0},
        "checkpoints": {"every_steps": 0, "best": False},
        "monitors": {"console": False, "rollouts_every": 0},
    }
    if METHODS[order.method].get("data") == "pairs":
        tree["prompts"] = {"source": str(write_pairs(order, size)), "max_prompt_tokens": 16}
    for override in order.overrides:
        key, _, text = override.partition("=")
        assign(tree, key, parse_value(text))
    return build_recipe(tree)


def write_pairs(order: Order, size: Size) -> Path:
    """The prompts of the task with two random completions each, as long as completions may be, stop token included."""
    from cohort.data.column_addition import column_addition

    draw = random.Random(0)
    path = Path(order.folder) / "pairs.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for row in column_addition(count=16 * size.prompts_per_step):
            chosen, rejected = ("".join(draw.choices(CHARACTERS, k=size.max_completion_tokens - 1)) for _ in range(2))
            file.write(json.dumps({"prompt": row["prompt"], "chosen": chosen, "rejected": rejected}) + "\n")
    return path


# -- gauges ------------------------------------------------------------------------------------------------------------


class Trained(BaseException):
    """Ends the run after its last step. Not an Exception: the run would save its state."""


class Gauge:
    """Bytes in use, and the most since it was last asked."""

    def watching(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def take_peak(self) -> int:
        return 0

    def figure(self, watched: Watched) -> dict[str, Any]:
        peaks = watched.stages.peaks
        held = watched.held()
        return {
            "peak_bytes": max(peaks.values()),
            "peak_stage": max(peaks, key=lambda stage: peaks[stage]),
            "stage_peak_bytes": peaks,
            "held_bytes": held,
            "activations_bytes": peaks["update"] - sum(held.values()),
            "kv_cache_bytes": watched.kv_cache,
            "parameters": watched.parameters,
            "rows": watched.rows,
            "largest_micro_batch_tokens": watched.micro_batch_tokens,
        }


class RssGauge(Gauge):
    """The process as the system sees it."""

    def __init__(self) -> None:
        import psutil

        self.baseline = psutil.Process().memory_info().rss

    def figure(self, watched: Watched) -> dict[str, Any]:
        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        return {"rss_peak_bytes": peak, "rss_baseline_bytes": self.baseline, "rss_growth_bytes": peak - self.baseline}


class CudaGauge(Gauge):
    def take_peak(self) -> int:
        import torch

        peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return peak


class TensorGauge(Gauge):
    """Storages of all tensors that any operation made and that are still alive, autograd's included."""

    def __init__(self) -> None:
        self.live = self.peak = 0

    def watching(self) -> contextlib.AbstractContextManager[Any]:
        import weakref

        import torch
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils._pytree import tree_leaves
        from torch.utils.weak import WeakIdKeyDictionary

        gauge, known = self, WeakIdKeyDictionary()

        class Counting(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                out = func(*args, **(kwargs or {}))
                for value in tree_leaves(out):
                    if isinstance(value, torch.Tensor):
                        gauge.see(value.untyped_storage(), known, weakref.finalize)
                return out

        return Counting()

    def see(self, storage: Any, known: Any, finalize: Callable[..., Any]) -> None:
        if storage in known:
            return
        known[storage] = True
        size = storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)
        finalize(storage, self.gone, size).atexit = False

    def gone(self, size: int) -> None:
        self.live -= size

    def take_peak(self) -> int:
        peak, self.peak = self.peak, self.live
        return peak


GAUGES: dict[str, Callable[[], Gauge]] = {"rss": RssGauge, "tensors": TensorGauge, "cuda": CudaGauge}


@dataclass
class Stages:
    """Which stage of the run each peak belongs to."""

    gauge: Gauge
    peaks: dict[str, int] = field(default_factory=dict)
    stack: list[str] = field(default_factory=lambda: ["setup"])

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.fold()
        self.stack.append(name)
        try:
            yield
        finally:
            self.fold()
            self.stack.pop()

    def fold(self) -> None:
        name = self.stack[-1]
        self.peaks[name] = max(self.peaks.get(name, 0), self.gauge.take_peak())


# -- what the run holds ------------------------------------------------------------------------------------------------


@dataclass
class Watched:
    stages: Stages
    finished: bool = False
    kv_cache: int = 0
    rows: int = 0
    """Rows of the last optimizer step, summed over its micro-batches."""
    micro_batch_tokens: int = 0
    parameters: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    gradients: dict[int, int] = field(default_factory=dict)
    """Bytes of gradients that each optimizer found at its last update, by its id."""

    def held(self) -> dict[str, int]:
        return {name: self.sizes.get(name, 0) for name in HELD}

    def look(self) -> None:
        """Find policy, reference, critic and optimizers among the objects that are alive, and weigh them."""
        from cohort.model.critic import Critic
        from cohort.model.optim import Optimizer
        from cohort.model.policy import Policy

        alive = gc.get_objects()
        critics = [thing for thing in alive if isinstance(thing, Critic)]
        policies = [thing for thing in alive if isinstance(thing, Policy)]
        trained = [policy for policy in policies if any(value.requires_grad for value in policy.model.parameters())]
        critic_optimizers = {id(critic.optimizer) for critic in critics}
        optimizers = [thing for thing in alive if isinstance(thing, Optimizer)]
        own = [optimizer for optimizer in optimizers if id(optimizer) not in critic_optimizers]
        if len(trained) != 1 or len(own) != 1 or len(critics) > 1:
            raise SystemExit(f"expected one policy and one optimizer of it, found {len(trained)} and {len(own)}")
        policy, optimizer = trained[0], own[0]
        self.parameters = policy.num_parameters
        weights = list(policy.model.parameters())
        self.sizes = {
            "weights": nbytes(weights),
            "masters": nbytes(optimizer.weights.masters.values(), besides=weights),
            "moments": nbytes(moments(optimizer)),
            "gradients": self.gradients[id(optimizer)],
            "reference": nbytes(value for other in policies if other is not policy for value in other.model.parameters()),
            "critic": 0,
        }
        for critic in critics:
            masters = critic.optimizer.weights.masters.values()
            everything = [*critic.model.parameters(), *masters, *moments(critic.optimizer)]
            self.sizes["critic"] = nbytes(everything) + self.gradients[id(critic.optimizer)]


def moments(optimizer: Any) -> list[Any]:
    return [*optimizer.state()[0].values()]


def nbytes(tensors: Any, besides: Any = ()) -> int:
    """Bytes of the distinct storages of tensors, without storages shared with `besides`."""
    left_out = {tensor.untyped_storage().data_ptr() for tensor in besides}
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(size for pointer, size in storages.items() if pointer not in left_out)


def watch_the_run(watched: Watched) -> None:
    """Measure memory between the stages of the run, without changing results."""
    from cohort import loop
    from cohort.engine.decoders import SlotCache
    from cohort.engine.local import LocalEngine
    from cohort.model.critic import Critic
    from cohort.model.optim import Optimizer
    from cohort.model.policy import Policy

    def around(owner: Any, name: str, stage: str, before: Callable[..., None] | None = None) -> None:
        original = getattr(owner, name)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if before:
                before(*args)
            with watched.stages.stage(stage):
                return original(*args, **kwargs)

        setattr(owner, name, wrapper)

    def note_gradients(optimizer: Any) -> None:
        masters = optimizer.weights.masters.values()
        found = [master.grad for master in masters if master.grad is not None]
        watched.gradients[id(optimizer)] = nbytes([*found, *optimizer.weights.sums.values()])

    around(LocalEngine, "generate", "rollout")
    around(Policy, "score_examples", "score")
    around(Critic, "values", "score")
    around(Optimizer, "clip_and_step", "optimizer", before=note_gradients)

    make_cache = SlotCache.__init__

    def cache(self: Any, *args: Any, **kwargs: Any) -> None:
        make_cache(self, *args, **kwargs)
        watched.kv_cache = max(watched.kv_cache, nbytes([*self.keys, *self.values]))

    SlotCache.__init__ = cache  # type: ignore[method-assign]

    pack, train = loop.pack_minibatch, loop.train

    def packing(*args: Any, **kwargs: Any) -> Any:
        minibatch = pack(*args, **kwargs)
        watched.rows = sum(len(micro.examples) for micro in minibatch.micro_batches)
        sizes = [micro.layout.num_tokens for micro in minibatch.micro_batches]
        watched.micro_batch_tokens = max([watched.micro_batch_tokens, *sizes])
        return minibatch

    def training(*args: Any, **kwargs: Any) -> None:
        with watched.stages.stage("update"):
            train(*args, **kwargs)
        watched.look()
        watched.finished = True
        raise Trained

    loop.pack_minibatch, loop.train = packing, training


# -- the table ---------------------------------------------------------------------------------------------------------


def whole(figure: dict[str, Any]) -> int:
    """The one number that methods are compared by."""
    return figure.get("rss_growth_bytes", figure["peak_bytes"])


def ratios(figures: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Peak of each method as a share of PPO's; on a CPU also counted by tensors."""
    ppo = figures.get("ppo", {"error": "not measured"})
    shares = {}
    for method, figure in figures.items():
        if "error" in figure or "error" in ppo:
            continue
        shares[f"{method} / ppo"] = whole(figure) / whole(ppo)
        if "rss_growth_bytes" in figure:
            shares[f"{method} / ppo, tensors"] = figure["peak_bytes"] / ppo["peak_bytes"]
    return shares


def table(document: dict[str, Any]) -> str:
    figures = document["methods"]
    on_cpu = document["device"] == "cpu"
    first = ["peak RSS − imports", "peak of tensors"] if on_cpu else ["peak"]
    names = ["method", *first, "÷ PPO", "peak in", *HELD, "activations", "KV cache", "rows", "micro-batch"]
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    for method, figure in figures.items():
        if "error" in figure:
            lines.append(f"| {method} | not measured: {figure['error']} |" + " |" * (len(names) - 2))
            continue
        peaks = [figure["rss_growth_bytes"], figure["peak_bytes"]] if on_cpu else [figure["peak_bytes"]]
        share = document["ratios"].get(f"{method} / ppo")
        held = [figure["held_bytes"][name] for name in HELD]
        cells = [
            method,
            *map(mebibytes, peaks),
            f"{share:.2f}" if share is not None else "",
            figure["peak_stage"],
            *map(mebibytes, [*held, figure["activations_bytes"], figure["kv_cache_bytes"]]),
            str(figure["rows"]),
            f"{figure['largest_micro_batch_tokens']} tokens",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    parameters = {figure["parameters"] for figure in figures.values() if "parameters" in figure}
    lines.append("")
    lines.append(
        f"MiB. {' / '.join(f'{count / 1e6:.1f} M' for count in sorted(parameters))} parameters, {document['steps']} steps."
    )
    shares = document["ratios"]
    for name in ("grpo / ppo", "grpo_no_reference / ppo", "grpo / ppo, tensors", "grpo_no_reference / ppo, tensors"):
        if name in shares:
            lines.append(f"{name}: {shares[name]:.2f}")
    return "\n".join(lines)


def mebibytes(count: int) -> str:
    return f"{count / 2**20:.0f}"


if __name__ == "__main__":
    sys.exit(main())
