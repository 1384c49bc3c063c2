"""The JSON document of a measurement: medians, rates, MFU, share of the limit, ratios. No torch.

docs/speed.md describes it. The lists of seconds were measured; everything under `derived` can be computed from them again.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from speed_costs import Accelerator, decode_limit, find_accelerator
from speed_job import BenchJob
from speed_workload import Workload

from cohort.errors import CohortError, RecipeError
from cohort.ops.flops import Dimensions, count_training_flops

SCHEMA = 1
BENCHMARK = "speed"


def make_document(
    jobs: Mapping[str, BenchJob],
    measured: Mapping[str, Mapping[str, dict[str, Any]]],
    missing: Mapping[str, str],
    machine: Mapping[str, Any],
    made: str,
) -> dict[str, Any]:
    """The document. `measured`: stage -> engine -> figures of its process; `missing`: "stage/peer" -> reason."""
    job = next(iter(jobs.values()))
    accelerator = find_accelerator(machine["gpu"]) if job.device.startswith("cuda") else None
    stages: dict[str, Any] = {}
    for stage, engines in measured.items():
        stages[stage] = {
            name: figures | {"derived": derive_figures(stage, job, figures, accelerator)} for name, figures in engines.items()
        }
    return {
        "benchmark": BENCHMARK,
        "schema": SCHEMA,
        "made": made,
        "machine": dict(machine),
        "settings": {
            "shape": job.shape.as_json(),
            "workload": asdict(job.workload) | {"completions": job.workload.completions, "tokens": job.workload.tokens},
            "device": job.device,
            "repeats": job.repeats,
            "rounds": job.rounds,
            "slots": job.slots,
            "micro_rows": job.micro_rows,
            "peer_batch": job.peer_batch,
            "overrides": list(job.overrides),
        },
        "stages": stages,
        "ratios": {stage: compare_engines(engines) for stage, engines in stages.items()},
        "missing": dict(missing),
    }


def derive_figures(stage: str, job: BenchJob, figures: Mapping[str, Any], accelerator: Accelerator | None) -> dict[str, Any]:
    """The median, spread, rates and shares of the machine's limits, from one measurement."""
    seconds = statistics.median(figures["seconds"])
    derived: dict[str, Any] = {
        "seconds": seconds,
        "least_seconds": min(figures["seconds"]),
        "most_seconds": max(figures["seconds"]),
        "tokens_per_second": figures["tokens"] / seconds,
    }
    if accelerator is None:
        reason = "no GPU" if not job.device.startswith("cuda") else "the GPU is not in the table of benchmarks/speed_costs.py"
        return derived | {"unknown_peak": reason}
    dimensions, work = job.shape.dimensions, job.workload
    if stage == "rollout":
        limit = decode_limit(
            dimensions, work.prompt_tokens, work.flat_plan, figures.get("slots", work.completions), accelerator
        )
        derived |= {"limit_tokens_per_second": limit.tokens_per_second, "limit_share": limit.seconds / seconds}
    elif stage == "train" and "executed_tokens" in figures:
        executed = figures["executed_tokens"]
        flops = count_training_flops(dimensions, executed, figures["tokens"], figures["frozen_base"])
        derived |= {"executed_tokens_per_second": executed / seconds, "mfu": flops / seconds / accelerator.peak_flops}
    elif stage == "step":
        frozen = figures.get("frozen_base", False)
        derived |= {"limit_seconds": compute_step_limit(dimensions, work, accelerator, frozen), "limit_share": 0.0}
        derived["limit_share"] = derived["limit_seconds"] / seconds
    return derived


def compute_step_limit(dimensions: Dimensions, work: Workload, accelerator: Accelerator, frozen_base: bool = False) -> float:
    """Least seconds of a step: the limit of its rollouts, then training on every group at the rate of a large matrix product, with
    each prompt computed once."""
    rollout = decode_limit(dimensions, work.prompt_tokens, work.flat_plan, work.completions, accelerator)
    executed = work.tokens + work.prompts * work.prompt_tokens
    return rollout.seconds + count_training_flops(dimensions, executed, work.tokens, frozen_base) / accelerator.flops


def compare_engines(engines: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Peer -> how many times faster ours is, by medians of the same run."""
    if "cohort" not in engines:
        return {}
    ours = engines["cohort"]["derived"]["seconds"]
    return {name: figures["derived"]["seconds"] / ours for name, figures in engines.items() if name != "cohort"}


# -- the file ----------------------------------------------------------------------------------------------------------


class BenchError(CohortError):
    """A stage could not be measured, or its result could not be written."""


def refuse_unwritable(file: Path) -> None:
    """Raise RecipeError before measuring, which may take an hour, if the result cannot be written. Makes missing folders."""
    if file.is_dir():
        raise RecipeError(f"--out {file}: it is a folder; name a file in it.")
    existed = file.exists()
    if existed and not file.is_file():
        return  # a pipe or a terminal: closing it would end its reader
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.open("a").close()
        if not existed:
            file.unlink()
    except OSError as problem:
        raise RecipeError(f"--out {file}: cannot be written ({problem.strerror}); name a writable file.") from problem


def write_result(document: Mapping[str, Any], file: Path, say: Callable[[str], None]) -> None:
    """Write the JSON. If that fails, save it elsewhere and raise BenchError with the place."""
    text = json.dumps(document, indent=1) + "\n"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as problem:
        where = rescue_result(text, say)
        raise BenchError(f"--out {file}: {problem.strerror}. The result is not lost: {where}.") from problem
    say(f"written: {file}")


def rescue_result(text: str, say: Callable[[str], None]) -> str:
    """Write the result to a temporary file, or else to the terminal; returns where it is."""
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="cohort-bench-", suffix=".json", delete=False) as kept:
            kept.write(text)
    except OSError:
        say(text)
        return "it is printed above"
    return f"it is in {kept.name}"
