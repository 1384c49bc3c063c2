"""Speed of rollouts, training and a whole GRPO step on this machine, next to HF generate, TRL and vLLM where installed.

    python benchmarks/speed.py                                   # 4.4 M parameters on a CPU, 0.5 B on a GPU
    python benchmarks/speed.py 1.5b --stages rollout --new 512   # one stage, Qwen2.5's shape
    python benchmarks/speed.py --lengths ragged                  # completions of different lengths
    python benchmarks/speed.py 7b model.lora.rank=16             # with recipe settings
    python benchmarks/speed.py my.toml                           # the model shape and sizes of a recipe

Weights are random, nothing is downloaded. docs/speed.md explains the figures and the JSON.

    speed_workload.py  the work, the same for every engine: prompts, group size, planned lengths, the reward
    speed_shapes.py    models of real shapes with random weights, and a tokenizer; speed_costs.py: their least possible time
    speed_child.py     one stage in its own process; speed_peers.py: starts it, and the scripts in peers/
    speed_result.py    the JSON document
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import machine as machines
from speed_job import BenchJob
from speed_peers import NAMES, PEERS, choose_peers, explain_absence, run_peer, run_stage
from speed_result import BenchError, make_document, refuse_unwritable, write_result
from speed_shapes import SHAPES, BenchShape, write_folder
from speed_workload import Workload

from cohort.base.text import make_table, write_count
from cohort.errors import CohortError, RecipeError
from cohort.ops.flops import Dimensions
from cohort.recipe.sections import suggest_nearest

STAGES = ("rollout", "train", "step")
QUIET = 1.25
"""Above this ratio of the slowest to the fastest repetition, the machine counts as noisy."""


@dataclass(frozen=True)
class Options:
    """What to measure, and how often. None and "" take the default of the machine or the recipe.

    The last five have no command-line option; speed_cpu.py and speed_gpu.py set them.
    """

    prompts: int | None = None
    group: int | None = None
    prompt_tokens: int | None = None
    new: int | None = None
    lengths: str = "fixed"
    stages: str = ""
    peers: str = "auto"
    vllm_python: str = ""
    repeats: int = 3
    rounds: int = 1
    device: str = ""
    out: Path | None = None
    mean_share: float | None = None
    silent_every: int = 0
    slots: int = 0
    micro_rows: int | None = None
    peer_batch: int = 0


@dataclass(frozen=True)
class Defaults:
    shape: str
    workload: Workload
    micro_rows: int


DEFAULTS = {
    "cpu": Defaults("tiny", Workload(16, 8, 16, 64, mean_share=0.5), 128),
    "cuda": Defaults("0.5b", Workload(32, 8, 128, 512, mean_share=0.4), 16),
}


def run_bench(words: Sequence[str], options: Options, say: Callable[[str], None] = print) -> dict[str, Any]:
    """Measure, print and write; returns the document."""
    machine = machines.ask_machine()
    with tempfile.TemporaryDirectory(prefix="cohort-bench-") as scratch:
        base = make_job(words, options, machine, scratch)
        stages = choose_stages(options.stages)
        peers = choose_peers(options.peers)
        base.make_recipe()  # faulty settings are refused before anything is measured
        refuse_no_interpreter(options.vllm_python)
        if options.out:
            refuse_unwritable(options.out)
        write_inputs(base)
        say(describe_job(base, machine))
        jobs, measured, missing = measure(base, stages, peers, options.vllm_python, say)
    document = make_document(jobs, measured, missing, machine, time.strftime("%Y-%m-%d"))
    print_table(document)
    if warning := describe_noise(document):
        say(warning)
    if options.out:
        write_result(document, options.out, say)
    return document


# -- what to measure ---------------------------------------------------------------------------------------------------


def make_job(words: Sequence[str], options: Options, machine: dict[str, Any], folder: str) -> BenchJob:
    """The job from the arguments (a shape or recipe, then recipe settings), the options, and defaults of the machine."""
    device = options.device or ("cuda" if machine["gpu"] else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise RecipeError(f"--device: {device!r}; use cpu, cuda, or one GPU of several, as cuda:1.")
    kind = "cuda" if device.startswith("cuda") else "cpu"
    if kind == "cuda" and not machine["gpu"]:
        raise RecipeError(f"--device {device}: this machine has no GPU.")
    defaults = DEFAULTS[kind]
    named = words[0] if words and "=" not in words[0] else ""
    overrides = tuple(words[1:] if named else words)
    work, shape = defaults.workload, named or defaults.shape
    if shape in SHAPES:
        bench_shape = BenchShape(shape, SHAPES[shape])
    else:
        bench_shape, work = read_recipe_sizes(shape, work)
    if options.lengths not in ("fixed", "ragged"):
        raise RecipeError(f"--lengths: {options.lengths!r}; use fixed or ragged.")
    work = replace(
        work,
        lengths=options.lengths,  # type: ignore[arg-type]
        silent_every=options.silent_every,
        **{
            name: value
            for name in ("prompts", "group", "prompt_tokens", "new", "mean_share")
            if (value := getattr(options, name))
        },
    )
    return BenchJob(
        stage="rollout",
        folder=folder,
        shape=bench_shape,
        workload=work,
        device=device,
        repeats=options.repeats,
        rounds=options.rounds,
        slots=options.slots,
        micro_rows=options.micro_rows or defaults.micro_rows,
        overrides=overrides,
        peer_batch=options.peer_batch,
    )


def refuse_no_interpreter(vllm_python: str) -> None:
    """Raise RecipeError before anything is measured if --vllm-python is not a program."""
    if vllm_python and shutil.which(vllm_python) is None:
        raise RecipeError(f"--vllm-python {vllm_python}: no such program; name the Python of the environment that has vLLM.")


def read_recipe_sizes(name: str, work: Workload) -> tuple[BenchShape, Workload]:
    """The shape of a recipe's model and the sizes of its work."""
    from cohort.recipe.file import find_recipe, find_recipe_path, list_built_in

    try:
        find_recipe_path(name)
    except RecipeError:
        close = suggest_nearest(name.lower(), [*SHAPES, *list_built_in()])
        raise RecipeError(
            f"{name!r}: not a shape, a recipe or a file{close or '.'} Shapes: {', '.join(SHAPES)}. "
            f"Recipes: {', '.join(list_built_in())}."
        ) from None
    recipe = find_recipe(name, [])
    scratch = recipe.model.scratch
    if recipe.model.source == "scratch":
        head_dim = scratch.hidden_size // scratch.num_heads
        dimensions = Dimensions(
            scratch.hidden_size, scratch.intermediate_size, scratch.num_layers, scratch.num_heads, scratch.num_kv_heads,
            head_dim, vocabulary=64, tied=True,
        )  # fmt: skip
    else:
        dimensions = Dimensions.from_config(read_config(recipe.model.source))
    work = replace(
        work,
        prompts=recipe.train.prompts_per_step,
        group=recipe.train.group_size,
        new=recipe.sampling.max_completion_tokens,
    )
    return BenchShape(name, dimensions), work


def read_config(source: str) -> Any:
    from transformers import AutoConfig

    from cohort.model.sources import find_folder

    try:
        return AutoConfig.from_pretrained(find_folder(source)).get_text_config()
    except (OSError, ValueError) as problem:
        first_line = str(problem).strip().splitlines()[0]
        raise RecipeError(f"model.source: cannot read the config of {source!r} ({first_line}).") from problem


def choose_stages(text: str, known: Sequence[str] = STAGES) -> list[str]:
    """The requested stages, each once, in the order of a step."""
    names = [name.strip() for name in text.split(",") if name.strip()] or list(known)
    if unknown := [name for name in names if name not in known]:
        raise RecipeError(f"--stages: {unknown[0]!r}; use some of {', '.join(known)}.")
    return [name for name in known if name in names]


def write_inputs(job: BenchJob) -> None:
    """Write the files that every process reads: config, tokenizer, rows."""
    write_folder(job.shape, job.model)
    rows = job.workload.make_rows(job.steps, job.shape.dimensions.vocabulary)
    job.rows_file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


# -- measuring ---------------------------------------------------------------------------------------------------------

Measured = dict[str, dict[str, dict[str, Any]]]


def measure(
    base: BenchJob, stages: Sequence[str], peers: Sequence[str], vllm_python: str, say: Callable[[str], None]
) -> tuple[dict[str, BenchJob], Measured, dict[str, str]]:
    """Measure each stage, ours and then its peers. A peer that fails is recorded with the reason."""
    jobs: dict[str, BenchJob] = {}
    measured: Measured = {}
    missing: dict[str, str] = {}
    for stage in stages:
        here = [peer for peer in peers if PEERS[peer] == stage]
        job = jobs[stage] = replace(base, stage=stage, hf_generate="hf_generate" in here)
        measured[stage] = {}
        for turn in range(job.rounds):
            which = f", round {turn + 1} of {job.rounds}" if job.rounds > 1 else ""
            say(f"{stage}: cohort" + (" and HF generate" if job.hf_generate else "") + which)
            found = run_stage(job)
            for path in found["cohort"].get("paths", {}).values():
                say(f"{stage}: {path['code']}: {path['choice']}")
            for peer in here:
                if peer in found or f"{stage}/{peer}" in missing:
                    continue
                reason = explain_absence(peer, job, vllm_python)
                if not reason:
                    say(f"{stage}: {NAMES[peer]}")
                    try:
                        found |= run_peer(peer, job, vllm_python)
                    except BenchError as problem:
                        reason = str(problem)
                if reason:
                    if peer in measured[stage]:
                        reason = f"failed in round {turn + 1}; earlier repetitions count: {reason}"
                    missing[f"{stage}/{peer}"] = reason
                    say(f"{stage}: no {NAMES[peer]}: {reason}")
            measured[stage] = join_rounds(measured[stage], found)
    return jobs, measured, missing


def join_rounds(before: dict[str, dict[str, Any]], found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Join a round with the earlier ones: all repetitions, and the larger peak."""
    result = dict(before)
    for name, figures in found.items():
        earlier = before.get(name)
        if earlier is None:
            result[name] = figures
            continue
        if earlier.get("paths") != figures.get("paths"):
            raise BenchError(f"rounds ran through different code: {earlier.get('paths')}, then {figures.get('paths')}")
        result[name] = earlier | {"seconds": [*earlier["seconds"], *figures["seconds"]]}
        for key in ("peak_bytes", "growth_bytes"):
            if earlier.get(key) or figures.get(key):
                result[name][key] = max(earlier.get(key) or 0, figures.get(key) or 0)
        parts, more = earlier.get("stages") or {}, figures.get("stages") or {}
        if parts or more:  # a stage may be missing from some rounds
            result[name]["stages"] = {part: [*parts.get(part, []), *more.get(part, [])] for part in parts | more}
    return result


# -- showing -----------------------------------------------------------------------------------------------------------


def describe_job(job: BenchJob, machine: dict[str, Any]) -> str:
    count = job.repeats * job.rounds
    turns = f"median of {write_count(count, 'repetition')}" if count > 1 else "one repetition"
    rounds = f" in each of {job.rounds} rounds" if job.rounds > 1 else ""
    return f"{describe_model_and_machine(job, machine)}: {describe_work(job.workload)}; {turns} after a warm-up{rounds}"


def describe_model_and_machine(job: BenchJob, machine: dict[str, Any]) -> str:
    where = (
        machine["gpu"] if job.device.startswith("cuda") else f"{machine['cpu']}, {write_count(machine['threads'], 'thread')}"
    )
    return f"{job.shape.name} ({job.shape.parameters / 1e6:.1f} M parameters, random weights) on {where}"


def describe_work(work: Workload) -> str:
    lengths = (
        f"of {write_count(work.new, 'token')}"
        if work.lengths == "fixed"
        else f"of up to {write_count(work.new, 'token')}, mean {work.tokens / work.completions:.0f}"
    )
    silent = f", 1 of {work.silent_every} groups without signal" if work.silent_every else ""
    prompts = f"{write_count(work.prompts, 'prompt')} of {write_count(work.prompt_tokens, 'token')}"
    return f"{prompts}, {write_count(work.group, 'completion')} each {lengths}{silent}"


def describe_noise(document: dict[str, Any]) -> str:
    """A warning if repetitions of an engine differ so much that a ratio may be chance, else ""."""
    widest = {
        stage: max(figures["derived"]["most_seconds"] / figures["derived"]["least_seconds"] for figures in engines.values())
        for stage, engines in document["stages"].items()
    }
    shaky = [stage for stage, spread in widest.items() if spread > QUIET]
    if not shaky:
        return ""
    machine = document["machine"]
    load = (
        f" (load average {machine['load']:g} on {write_count(machine['cores'], 'core')} at the start)"
        if machine.get("load")
        else ""
    )
    return (
        f"{', '.join(shaky)}: the slowest repetition took {max(widest.values()):.2f} times the fastest, so the machine was not quiet{load}. "
        "Measure again, or with more --rounds, before trusting a ratio."
    )


COLUMNS = ("stage", "engine", "seconds\n[least, most]", "tokens/s", "of the machine", "peak memory", "Cohort is")


def print_table(document: dict[str, Any]) -> None:
    """Print a row per stage and engine, without empty columns."""
    from rich.console import Console

    rows = make_table_rows(document)
    shown = [number for number, cells in enumerate(zip(*rows, strict=True)) if any(cells)]
    cells = [[row[number] for number in shown] for row in rows]
    Console().print(make_table([COLUMNS[number] for number in shown], cells, texts=2))


def make_table_rows(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """A row per stage and engine, with a cell for each of COLUMNS."""
    rows: list[tuple[str, ...]] = []
    for stage, engines in document["stages"].items():
        for name, figures in engines.items():
            derived = figures["derived"]
            spread = f"{derived['seconds']:.3g}"
            if len(figures["seconds"]) > 1:
                spread += f" [{derived['least_seconds']:.3g}, {derived['most_seconds']:.3g}]"
            ratio = document["ratios"][stage].get(name)
            rate = f"{derived['tokens_per_second']:,.0f}"
            ratio_text = f"{ratio:.2f} x" if ratio else ""
            rows.append(
                (stage, NAMES[name], spread, rate, describe_machine_share(derived), describe_memory(figures), ratio_text)
            )
    return rows


def describe_machine_share(derived: dict[str, Any]) -> str:
    if "mfu" in derived:
        return f"MFU {100 * derived['mfu']:.1f} %"
    return f"{100 * derived['limit_share']:.1f} % of the limit" if "limit_share" in derived else ""


def describe_memory(figures: dict[str, Any]) -> str:
    """Peak memory of the process or GPU if known, else the growth during the call."""
    if figures.get("peak_bytes"):
        return f"{figures['peak_bytes'] / 2**30:.2f} GiB"
    return f"+{figures['growth_bytes'] / 2**30:.2f} GiB" if figures.get("growth_bytes") else ""


# -- the command line --------------------------------------------------------------------------------------------------


def read_count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("words", nargs="*", metavar="SHAPE_OR_RECIPE KEY=VALUE", help=f"{', '.join(SHAPES)}, or a recipe; then recipe settings")
    add("--prompts", type=read_count, help="prompts per step; default: the recipe's, else 16 on a CPU, 32 on a GPU")
    add("--group", type=read_count, help="completions per prompt; default: the recipe's, else 8")
    add("--prompt-tokens", type=read_count, help="tokens per prompt; default: 16 on a CPU, 128 on a GPU")
    add("--new", type=read_count, help="maximum tokens per completion; default: the recipe's, else 64 on a CPU, 512 on a GPU")
    add("--lengths", default="fixed", help="fixed: all completions have --new tokens; ragged: log-normal lengths")
    add("--stages", default="", help="some of rollout,train,step; default: all")
    add("--peers", default="auto", help="auto, none, or some of hf_generate,vllm,trl,trl_vllm")
    add("--vllm-python", default="", help="Python of another environment that has vLLM")
    add("--repeats", type=read_count, default=3, help="measured repetitions, after one to warm up")
    add("--rounds", type=read_count, default=1, help="measure all engines this often, in turn; more on a noisy machine")
    add("--device", default="", help="cpu or cuda; default: cuda if available")
    add("--out", type=Path, help="write the result as JSON")
    chosen = vars(parser.parse_intermixed_args(arguments))
    words = chosen.pop("words")
    try:
        run_bench(words, Options(**chosen))
    except CohortError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
