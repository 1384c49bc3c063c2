"""Cost curves: time and memory along one axis at a time, with fitted and expected slopes.

A slope is that of the least-squares line through log(cost) and log(x): 1 is proportional, 0 is flat. The expected slope is that of the
cost model (speed_costs.py) at the same points, not a round number: reading the weights is a fixed cost, and attention grows with the
square of the length. Time should follow the model; memory should be:

    rollouts   keys and values of the slots: in proportion to slots x (prompt + completion)
    training   the largest micro-batch: flat once a step fills the fixed budget of tokens, and while a row fits into it
    loss head  flat in vocabulary x tokens (once these are more than a chunk)

    python benchmarks/curves.py                              all axes, by the machine; result and drawing in docs/results
    python benchmarks/curves.py --axes prompts,length        some of them
    python benchmarks/curves.py 1.5b --axes length --points 128,1024,8192

docs/speed.md explains the slopes.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import machine as machines
from speed import Options, choose_stages, describe_job, make_job, write_inputs
from speed_cases import RESULTS, read_revision, say
from speed_costs import (
    Accelerator,
    count_attention_flops,
    count_live_rows,
    decode_limit,
    estimate_training_cost,
    find_accelerator,
)
from speed_job import BenchJob
from speed_peers import run_process, run_stage
from speed_plot import draw_curves
from speed_result import BenchError, refuse_unwritable, write_result
from speed_shapes import SHAPES, BenchShape

from cohort.errors import RecipeError
from cohort.ops.flops import Dimensions

BENCHMARK = "curves"
STAGES = ("rollout", "train")
TOLERANCE = {"time": 0.15, "memory": 0.15}
"""How far a measured slope may be from the expected one."""


@dataclass(frozen=True)
class Axis:
    name: str
    title: str
    points: Mapping[str, Sequence[Any]]
    """By kind of device."""
    change: Callable[[BenchJob, Any], BenchJob]
    """Makes the job at a point."""
    x: Callable[[BenchJob], float]


def change_work(**fields: Any) -> Callable[[BenchJob, Any], BenchJob]:
    """A function that changes one field of the workload and pins the others."""

    def change(job: BenchJob, value: Any) -> BenchJob:
        own = {name: value if pinned is None else pinned for name, pinned in fields.items()}
        return replace(job, workload=replace(job.workload, **own))

    return change


def change_shape(job: BenchJob, value: Any) -> BenchJob:
    """The job with a shape by name, or with `tiny` at another width."""
    if isinstance(value, str) and value not in SHAPES:
        raise RecipeError(f"shape {value!r} is not known. Use {', '.join(SHAPES)}, or widths.")
    return replace(job, shape=BenchShape(value, SHAPES[value]) if isinstance(value, str) else scale_tiny(value))


def scale_tiny(width: int) -> BenchShape:
    """A Llama of 6 layers and this width, for cost curves on a CPU; 256 is `tiny`."""
    tiny = SHAPES["tiny"]
    heads = max(1, width // tiny.head_dim)
    intermediate = tiny.intermediate * width // tiny.hidden
    return BenchShape(f"width {width}", Dimensions(width, intermediate, 6, heads, max(1, heads // 2), 64, 64, tied=False))


AXES = (
    Axis("group", "group size", {"cpu": (4, 8, 16, 32, 64), "cuda": (4, 8, 16, 32, 64)}, change_work(group=None),
         lambda job: job.workload.group),
    Axis("length", "completion tokens", {"cpu": (32, 64, 128, 256), "cuda": (128, 512, 2048, 8192)}, change_work(new=None),
         lambda job: job.workload.new),
    Axis("prompts", "prompts", {"cpu": (8, 16, 32, 64), "cuda": (32, 64, 128, 256)}, change_work(prompts=None),
         lambda job: job.workload.prompts),
    Axis("model", "matrix parameters", {"cpu": (128, 256, 512), "cuda": ("0.5b", "1.5b", "7b")}, change_shape,
         lambda job: job.shape.dimensions.body_parameters + job.shape.dimensions.head_parameters),
)  # fmt: skip
BASE = {
    "cpu": {"prompts": 8, "group": 8, "prompt_tokens": 16, "new": 32, "slots": 64},
    "cuda": {"prompts": 32, "group": 8, "prompt_tokens": 128, "new": 256, "slots": 256},
}
"""The point that every axis goes through, unless an option says otherwise. Slots are fixed: beyond them time must be flat
per token, and memory flat."""
HEAD_TOKENS = {"cpu": (1024, 2048, 4096, 8192), "cuda": (16_384, 32_768, 65_536, 131_072)}
HEAD_VOCABULARY = {"cpu": 32_768, "cuda": 151_936}


def run_curves(words: Sequence[str], options: Options, axes: str = "", points: str = "") -> dict[str, Any]:
    """Measure every axis; the document with measured and expected slopes."""
    machine = machines.ask_machine()
    device = options.device or ("cuda" if machine["gpu"] else "cpu")
    kind = "cuda" if device.startswith("cuda") else "cpu"
    stages = choose_stages(options.stages, STAGES)
    given: dict[str, Any] = {name: getattr(options, name) or value for name, value in BASE[kind].items()}
    chosen = choose_axes(axes)
    if points and (len(chosen) > 1 or chosen == ["head"]):
        raise RecipeError("--points: name one axis with --axes for them, not the head, which has its own.")
    curves: list[dict[str, Any]] = []
    stops: list[str] = []
    with tempfile.TemporaryDirectory(prefix="cohort-curves-") as scratch:
        base = make_job(words, replace(options, **given), machine, scratch)
        # Faulty settings and points are refused before anything is measured.
        lines = [(axis, make_jobs_along(axis, parse_points(points, axis, kind), base)) for axis in AXES if axis.name in chosen]
        base.make_recipe()
        if options.out:
            refuse_unwritable(options.out)
        say(f"{describe_job(base, machine)}. One of these at a time is varied: {', '.join(chosen)}.")
        accelerator = find_accelerator(machine["gpu"]) if kind == "cuda" else None
        for axis, jobs in lines:
            curves += measure_axis(axis, jobs, stages, accelerator, stops)
        if "head" in chosen:
            curves += measure_head(base, kind, stops)
    document = {
        "benchmark": BENCHMARK,
        "schema": 1,
        "made": time.strftime("%Y-%m-%d"),
        "revision": read_revision(),
        "machine": machine,
        "settings": {
            "base": given,
            "shape": base.shape.as_json(),
            "device": base.device,
            "lengths": base.workload.lengths,
            "micro_rows": base.micro_rows,
            "overrides": list(base.overrides),
            "repeats": base.repeats,
        },
        "curves": curves,
        "stopped": stops,
    }
    for curve in curves:
        say(describe_curve(curve))
    if not curves:
        say("no curve to draw: no axis has two measured points; the reasons are above.")
    if options.out:
        write_result(document, options.out, say)
        if curves:
            options.out.with_suffix(".svg").write_text(draw_curves(document), encoding="utf-8")
    return document


def choose_axes(text: str) -> list[str]:
    known = [*(axis.name for axis in AXES), "head"]
    names = [name.strip() for name in text.split(",") if name.strip()] or known
    if unknown := [name for name in names if name not in known]:
        raise RecipeError(f"--axes: {unknown[0]!r}; use some of {', '.join(known)}.")
    return [name for name in known if name in names]


def parse_points(text: str, axis: Axis, kind: str) -> Sequence[Any]:
    if not text:
        return axis.points[kind]
    values = [int(value) if value.strip().isdigit() else value.strip() for value in text.split(",")]
    numbers = all(isinstance(value, int) and value > 0 for value in values)
    if len(values) < 2 or (axis.name != "model" and not numbers) or 0 in values:
        names = " (widths), or names of shapes," if axis.name == "model" else ""
        raise RecipeError(f"--points: {text!r}; {axis.title} needs at least two whole numbers{names} from 1 on, with commas.")
    return values


def make_jobs_along(axis: Axis, values: Sequence[Any], base: BenchJob) -> list[BenchJob]:
    """The job at each point, from the least to the largest; refused where its recipe is, or where two points are one."""
    budget = base.micro_rows * (base.workload.prompt_tokens + base.workload.new)
    overrides = (f"train.micro_batch_tokens={budget}", *base.overrides)
    jobs = [axis.change(replace(base, overrides=overrides), value) for value in values]
    for value, job in zip(values, jobs, strict=True):
        try:
            job.make_recipe()
        except RecipeError as problem:
            raise RecipeError(f"{axis.title} {value}: {problem}") from problem
    if len({axis.x(job) for job in jobs}) < len(jobs):
        raise RecipeError(f"--points: {', '.join(map(str, values))}; one of them is given twice.")
    return sorted(jobs, key=axis.x)


def measure_axis(
    axis: Axis,
    points: Sequence[BenchJob],
    stages: Sequence[str],
    accelerator: Accelerator | None,
    stops: list[str],
) -> list[dict[str, Any]]:
    """Rollouts and training at every point, and the curves through them. A point that fails ends its curve, with the reason."""
    curves = []
    for stage in stages:
        jobs: list[BenchJob] = []
        figures: list[dict[str, Any]] = []
        for point in points:
            x = f"{axis.x(point):.6g}"
            job = replace(point, stage=stage, folder=f"{point.folder}/{stage}-{axis.name}-{x}")
            write_inputs(job)
            try:
                figures.append(run_stage(job)["cohort"])
                jobs.append(job)
            except BenchError as problem:
                stops.append(f"{stage}, {axis.title} {x}: {str(problem).strip().splitlines()[-1]}")
                say(stops[-1])
                break
            say(f"{stage}, {axis.title} {x}: {describe_cost(figures[-1])}")
        curves += fit_curves(axis, stage, jobs, figures, accelerator)
    return curves


def describe_cost(figures: Mapping[str, Any]) -> str:
    memory = f", +{figures['growth_bytes'] / 2**20:.0f} MiB" if figures.get("growth_bytes") else ""
    return f"{statistics.median(figures['seconds']):.3g} s{memory}"


def fit_curves(
    axis: Axis,
    stage: str,
    jobs: Sequence[BenchJob],
    figures: Sequence[Mapping[str, Any]],
    accelerator: Accelerator | None,
) -> list[dict[str, Any]]:
    """The curve of time and the curve of memory of one stage along one axis."""
    xs = [axis.x(job) for job in jobs]
    name = {"rollout": "rollouts", "train": "training"}[stage]
    seconds = [statistics.median(figure["seconds"]) for figure in figures]
    model = [model_seconds(stage, job, accelerator) for job in jobs]
    curves = [fit_curve(f"{name}: seconds", "time", axis, xs, seconds, fit_slope(xs, model))]
    growth = [figure.get("growth_bytes") for figure in figures]
    expected = model_memory(stage, axis, jobs, xs)
    if expected is not None and all(growth):
        megabytes = [float(value) / 2**20 for value in growth if value]
        curves.append(fit_curve(f"{name}: MiB beyond the weights", "memory", axis, xs, megabytes, expected))
    return [found for found in curves if found]


def fit_curve(
    title: str, kind: str, axis: Axis | None, xs: Sequence[float], ys: Sequence[float], expected: float
) -> dict[str, Any]:
    if len(xs) < 2:
        return {}
    slope = fit_slope(xs, ys)
    return {
        "title": title,
        "kind": kind,
        "axis": axis.title if axis else "vocabulary x tokens",
        "points": [list(point) for point in zip(xs, ys, strict=True)],
        "slope": slope,
        "expected": expected,
        "as_expected": slope <= expected + TOLERANCE[kind] if kind == "memory" else abs(slope - expected) <= TOLERANCE[kind],
    }


def fit_slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Slope of the least-squares line through (log x, log y)."""
    if len(xs) < 2:
        return math.nan
    log_x, log_y = [math.log(x) for x in xs], [math.log(y) for y in ys]
    return statistics.linear_regression(log_x, log_y).slope


def model_seconds(stage: str, job: BenchJob, accelerator: Accelerator | None) -> float:
    """The quantity that time should be proportional to: seconds of the cost model, or only FLOPs without a known accelerator."""
    dimensions, work = job.shape.dimensions, job.workload
    if stage == "train":
        return estimate_training_cost(dimensions, work.prompt_tokens, work.flat_plan, work.group)
    slots = job.slots or work.completions
    if accelerator:
        return decode_limit(dimensions, work.prompt_tokens, work.flat_plan, slots, accelerator).seconds
    live, context = count_live_rows(work.prompt_tokens, work.flat_plan, slots)
    parameters = dimensions.body_parameters + dimensions.head_parameters
    return float(2 * parameters * sum(live) + count_attention_flops(dimensions, sum(context)))


def model_memory(stage: str, axis: Axis, jobs: Sequence[BenchJob], xs: Sequence[float]) -> float | None:
    """Expected slope of the memory; None where nothing is claimed."""
    if axis.name == "model":
        return None
    if stage == "train":
        return fit_slope(xs, [count_largest_micro_batch(job) for job in jobs])
    slots = [min(job.slots or job.workload.completions, job.workload.completions) for job in jobs]
    cached = [count * (job.workload.prompt_tokens + job.workload.new) for count, job in zip(slots, jobs, strict=True)]
    return fit_slope(xs, cached)


def count_largest_micro_batch(job: BenchJob) -> int:
    """Tokens: what the budget allows, the whole step where that is less, and a row in any case."""
    work = job.workload
    whole = work.prompts * work.prompt_tokens + work.tokens
    longest = work.prompt_tokens + max(work.flat_plan)
    return max(longest, min(whole, job.make_recipe().train.micro_batch_tokens))


# -- the loss head -----------------------------------------------------------------------------------------------------


def measure_head(base: BenchJob, kind: str, stops: list[str]) -> list[dict[str, Any]]:
    """Memory of log-probs and their gradient, against vocabulary x tokens; failures are recorded as at other points."""
    vocabulary = HEAD_VOCABULARY[kind]
    points = []
    for tokens in HEAD_TOKENS[kind]:
        target = Path(base.folder) / f"head-{tokens}.json"
        command = [sys.executable, __file__, "--head", base.device, str(tokens), str(vocabulary), str(target)]
        try:
            run_process(command, "the loss head")
            growth = json.loads(target.read_text(encoding="utf-8"))["growth_bytes"]
            if not growth:
                raise BenchError("its memory cannot be measured on this machine")
        except BenchError as problem:
            stops.append(f"loss head, {tokens} tokens: {str(problem).strip().splitlines()[-1]}")
            say(stops[-1])
            break
        points.append((float(tokens) * vocabulary, growth / 2**20))
        say(f"loss head, {tokens} tokens: +{growth / 2**20:.0f} MiB")
    found = fit_curve("loss head: MiB", "memory", None, [x for x, _ in points], [y for _, y in points], 0.0)
    return [found] if found else []


HEAD_WIDTH = 64
"""Narrow, so that hidden states and their gradient are small compared with the logits."""


def measure_head_growth(device: str, tokens: int, vocabulary: int) -> int | None:
    """Bytes that log-probs of `tokens` tokens and their backward add at most; the head is not trained."""
    import torch
    from speed_child import peak_memory
    from transformers import LlamaConfig, LlamaForCausalLM

    from cohort.model.head import split

    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=HEAD_WIDTH, intermediate_size=HEAD_WIDTH, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1, tie_word_embeddings=True,
    )  # fmt: skip
    dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(config)
    head = split(model.to(device, dtype).requires_grad_(False))
    hidden_MH = torch.randn(tokens, HEAD_WIDTH, device=device, dtype=dtype, requires_grad=True)
    token_ids_M = torch.randint(vocabulary, (tokens,), device=device)

    def work(count: int) -> None:
        logprobs_M, _ = head.token_logprobs(hidden_MH[:count], token_ids_M[:count], temperature=1.0)
        logprobs_M.sum().backward()
        hidden_MH.grad = None

    work(16)  # libraries allocate what they keep at their first use
    with peak_memory(device) as peak:
        work(tokens)
    return peak.growth


def describe_curve(found: Mapping[str, Any]) -> str:
    slopes = f"slope {found['slope']:.2f}, expected {found['expected']:.2f}"
    return f"{found['title']} against {found['axis']}: {slopes}: {judge_slope(found)}"


def judge_slope(found: Mapping[str, Any]) -> str:
    """A verdict in words. Memory may grow less than expected; time that does was not dominated by the work."""
    if found["as_expected"]:
        less = found["slope"] < found["expected"] - TOLERANCE[found["kind"]]
        return "less than expected, which is good" if less else "as expected"
    if found["slope"] > found["expected"]:
        return "NOT as expected, grows faster"
    return "NOT as expected, grows more slowly: fixed costs, or a noisy machine, outweigh the work at these points"


def main() -> int:
    """Run the command; returns 1 if a slope is not as expected."""
    if sys.argv[1:2] == ["--head"]:  # in the process of one point of the loss head
        device, tokens, vocabulary, target = sys.argv[2:]
        growth = measure_head_growth(device, int(tokens), int(vocabulary))
        Path(target).write_text(json.dumps({"growth_bytes": growth}), encoding="utf-8")
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="SHAPE KEY=VALUE", help="as for speed.py")
    parser.add_argument("--axes", default="", help="some of group,length,prompts,model,head; all unless named")
    parser.add_argument("--points", default="", help="other points on one axis, with commas")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--name", default="curves", help="of the files")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder; docs/results unless named")
    chosen = parser.parse_args()
    options = Options(repeats=chosen.repeats, out=chosen.out / f"{chosen.name}.json")
    document = run_curves(chosen.words, options, chosen.axes, chosen.points)
    return 0 if all(curve["as_expected"] for curve in document["curves"]) else 1


if __name__ == "__main__":
    sys.exit(main())
