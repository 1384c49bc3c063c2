"""The predictions of `cohort doctor --ranks` beside what was measured.

    python benchmarks/predict_scale.py                                      the cost model beside docs/results, one H200
    python benchmarks/predict_scale.py --gpus 1 2 4 8 16                    a table for GPUs that were never there
    python benchmarks/predict_scale.py ONE_RANK TWO_RANKS FOUR_RANKS --gbit 1 --latency-ms 5

The last form takes run folders: one of a run on one rank, from which all is predicted, and those of runs on more ranks. It needs
their recipe.toml, metrics.jsonl and summary.json. Rate and delay of the link are one way, and nominal; what the ranks themselves
measure is said by `torchrun ... -m cohort doctor`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from cohort.observe.run_folder import RunFolder
from cohort.observe.scaling import (
    CPU_STEP_ROWS,
    NVLINK,
    OFTEN,
    Link,
    Work,
    choose_link,
    count_step_rows,
    estimate_seconds,
    predict_step,
    read_sharing,
    read_work,
)
from cohort.ops.flops import Dimensions, find_accelerator

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
SLOTS = 1024
"""That a GPU has room for at these lengths."""
CURVE_TOKENS = 6144
"""Of a micro-batch in the curves of docs/results.md."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("alone", nargs="?", type=Path, help="folder of a run on one rank")
    parser.add_argument("others", nargs="*", type=Path, help="folders of runs of the same recipe on more ranks")
    parser.add_argument("--gbit", type=float, default=8.0, help="of the link between the ranks, one way")
    parser.add_argument("--latency-ms", type=float, default=0.1, help="until a message is there, one way")
    parser.add_argument("--step-rows", type=float, default=CPU_STEP_ROWS, help="cost of a decode step, in rows")
    parser.add_argument("--trained", type=int, default=0, help="trained parameters; those of summary.json unless named")
    parser.add_argument("--bits", type=int, default=32, help="of a number that is computed with")
    parser.add_argument("--sums", choices=("exact", "fast"), default="exact", help="what parallel.sums came to")
    parser.add_argument("--gpus", type=int, nargs="+", help="print predictions for so many H200, eight to a host")
    chosen = parser.parse_args()
    if chosen.gpus:
        print("\n".join(tabulate_gpus(chosen.gpus)))
        return 0
    if not chosen.alone:
        return hold_against_results()
    work = read_run(chosen.alone, chosen)
    link = Link(chosen.gbit * 1e9 / 8, chosen.latency_ms * 1e-3)
    print(
        f"link {chosen.gbit:g} Gbit/s, {chosen.latency_ms:g} ms; {work.trained:,} parameters trained, {work.micro_batches:g} micro-batches"
    )
    print_stages(f"{chosen.alone}: 1 rank", work.seconds, {}, {})
    for other in chosen.others:
        ranks = RunFolder(other).read_summary().get("ranks", 1)
        step = predict_step(work, ranks, link)
        print_stages(f"{other}: {ranks} ranks", read_run(other, chosen).seconds, step.seconds, step.talk)
    return 0


def read_run(folder: Path, chosen: argparse.Namespace) -> Work:
    run = RunFolder.open(folder)
    parameters = int(run.read_summary().get("parameters", 0))
    known = read_sharing(run.recipe()) | {
        "parameters": parameters,
        "trained": chosen.trained or parameters,
        "element": chosen.bits // 8,
        "exact": chosen.sums == "exact",
        "overlaps": False,
        "step_rows": chosen.step_rows,
    }
    work = read_work(run.metrics(), **known)
    if work is None:
        raise SystemExit(f"{folder}: no step was timed")
    return work


def print_stages(title: str, measured: Any, predicted: Any, talk: Any) -> None:
    print(f"\n{title}\n{'stage':12} {'measured':>10} {'predicted':>10} {'of it talk':>10} {'error':>8}")
    rows = {stage: (measured.get(stage, 0.0), predicted.get(stage, 0.0), talk.get(stage, 0.0)) for stage in OFTEN}
    rows["step"] = tuple(map(sum, zip(*rows.values(), strict=True)))  # type: ignore[assignment]
    for stage, (seen, said, told) in rows.items():
        if seen or said:
            error = f"{said / seen - 1:+.0%}" if seen and said else ""
            print(f"{stage:12} {seen:10.4f} {said:10.4f} {told:10.4f} {error:>8}")


# -- one H200 ----------------------------------------------------------------------------------------------------------


def hold_against_results() -> int:
    """Seconds of rollouts, updates and optimizer steps that were measured, beside those of the model that needs no run."""
    print(f"{'case':24} {'stage':10} {'measured':>10} {'predicted':>10} {'error':>8}")
    for file in sorted(RESULTS.glob("gpu-*.json")):
        document = json.loads(file.read_text(encoding="utf-8"))
        if document["benchmark"] == "curves":
            compare_curve(file.stem, document)
            continue
        work = document["settings"]["workload"]
        for stage, engines in document["stages"].items():
            ours = engines["cohort"]
            rows = document["settings"]["micro_rows"]
            predicted = predict_alone(document, work, ours.get("slots") or 256, rows, bool(ours.get("frozen_base")))
            seen = {name: median(laps) for name, laps in ours.get("stages", {stage: ours["seconds"]}).items()}
            for name in ("rollout", "update", "optimizer"):
                if name in seen and predicted[name]:
                    print_pair(file.stem, name, seen[name], predicted[name])
    return 0


def compare_curve(case: str, document: Any) -> None:
    """Rollouts by rows and length: how far fewer rows make a decode step shorter."""
    base = document["settings"]["base"]
    for curve in document["curves"]:
        stage = {"rollouts: seconds": "rollout", "training: seconds": "update"}.get(curve["title"])
        axis = {"prompts": "prompts", "completion tokens": "new"}[curve["axis"]]
        for x, seconds in curve["points"] if stage else ():
            work = base | {axis: x, "lengths": "fixed", "mean_share": 1.0}
            rows = max(1, CURVE_TOKENS // (work["prompt_tokens"] + work["new"]))
            predicted = predict_alone(document, work, base["slots"], rows, False)
            print_pair(f"{case} {x}", stage or "", seconds, predicted[stage or ""])


def print_pair(case: str, stage: str, seen: float, said: float) -> None:
    print(f"{case:24} {stage:10} {seen:10.3f} {said:10.3f} {said / seen - 1:+8.0%}")


def read_dimensions(shape: Any) -> Dimensions:
    names = ("hidden", "intermediate", "layers", "query_heads", "kv_heads", "head_dim", "vocabulary", "tied")
    return Dimensions(**{name: shape[name] for name in names})


def predict_alone(
    document: Any, work: Any, slots: int, micro_rows: int, frozen: bool, modules: bool = False
) -> dict[str, float]:
    shape, accelerator = document["settings"]["shape"], find_accelerator(document["machine"]["gpu"])
    assert accelerator is not None
    length = work["new"] if work["lengths"] == "fixed" else round(work["new"] * work["mean_share"])
    return estimate_seconds(
        read_dimensions(shape),
        accelerator,
        prompt_tokens=work["prompt_tokens"],
        length=length,
        prompts=work["prompts"],
        group=work["group"],
        slots=slots,
        micro_batches=math.ceil(work["prompts"] * work["group"] / micro_rows),
        trained=0 if frozen else shape["parameters"],
        frozen_base=frozen,
        modules=modules,
    )


# -- GPUs that were never there ------------------------------------------------------------------------------------------


LENGTH, PROMPT_TOKENS, GROUP, NETWORK_GBIT = 512, 128, 8, 400.0
CASES = (
    ("0.5b", 32, 32, False),
    ("0.5b", 256, 32, False),
    ("1.5b", 256, 32, False),
    ("7b", 256, 24, False),
    ("7b", 256, 24, True),
)
"""Shape, prompts of a step, rows of a micro-batch, and whether the model is shared out. 7B whole has 8-bit states."""


def tabulate_gpus(numbers: Sequence[int]) -> Iterator[str]:
    """Seconds and tokens by the cost model, rewards left out; NVLink by its data sheet, 400 Gbit/s between hosts of 8."""
    yield "| model | prompts × 8 × 512 | GPUs | s a step | tokens/s | a GPU | GiB a GPU | most goes into |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, prompts, micro_rows, shard in CASES:
        document = json.loads((RESULTS / f"gpu-rollout-{name}.json").read_text(encoding="utf-8"))
        shape = document["settings"]["shape"]
        work = {"prompt_tokens": PROMPT_TOKENS, "new": LENGTH, "lengths": "fixed", "prompts": prompts, "group": GROUP}
        seconds = predict_alone(document, work, SLOTS, micro_rows, False, modules=shard)
        accelerator = find_accelerator(document["machine"]["gpu"])
        assert accelerator is not None
        completions = prompts * GROUP
        step = Work(
            seconds,
            tokens=completions * LENGTH,
            prompts=prompts,
            micro_batches=math.ceil(completions / micro_rows),
            decode_steps=LENGTH * math.ceil(completions / SLOTS),
            longest=LENGTH,
            step_rows=count_step_rows(read_dimensions(shape), accelerator, PROMPT_TOKENS + LENGTH / 2),
            trained=shape["parameters"],
            parameters=shape["parameters"],
            shard=shard,
            units=shape["layers"] + 2,
        )
        for ranks in numbers:
            if shard and ranks == 1:
                continue
            one = predict_step(step, ranks, choose_link(ranks, NVLINK, NETWORK_GBIT))
            memory = estimate_gpu(shape, completions, micro_rows, ranks, shard)
            label = f"{name}{', shared out' if shard else ', 8-bit states' if name == '7b' else ''}"
            rates = f"{one.tokens_per_second / 1e3:.1f}k | {one.tokens_per_second / 1e3 / ranks:.1f}k"
            yield f"| {label} | {prompts} | {ranks} | {one.step:.2f} | {rates} | {memory:.0f} | {one.bound} |"


def estimate_gpu(shape: Any, completions: int, micro_rows: int, ranks: int, shard: bool) -> float:
    from cohort.training.memory_estimate import GIB, ModelNumbers, RunNumbers, estimate_memory

    names = ("layers", "hidden", "query_heads", "kv_heads", "head_dim", "intermediate", "vocabulary", "parameters")
    run = RunNumbers(
        state_bits=8 if shape["name"] == "7b" and not shard else 32,
        micro_batch_tokens=micro_rows * (PROMPT_TOKENS + LENGTH),
        own_kernels=not shard,
        gpu_bytes=140 * GIB,
        slots=min(SLOTS, math.ceil(completions / ranks)),
        longest=PROMPT_TOKENS + LENGTH,
        ranks=ranks,
        shard=shard,
    )
    return estimate_memory(ModelNumbers(*(shape[name] for name in names)), run).peak / GIB


if __name__ == "__main__":
    raise SystemExit(main())
