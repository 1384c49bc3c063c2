"""The figures of docs/results.md that are not tests, each with its target. `benchmarks/prove.py` runs them."""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "cohort"
COHORT = str(Path(sys.executable).with_name("cohort"))

HELP_SECONDS = 0.5
DOCTOR_SECONDS = 60.0
ADDITION_SECONDS = 600.0
SMOLLM2_SECONDS = 420.0
SMOLLM2_CPU_SECONDS = 1000.0
MISMATCH = 1e-5
LOOP_LINES = 80


@dataclass(frozen=True)
class Figure:
    name: str
    command: str
    value: str
    target: str
    passed: bool

    def row(self) -> str:
        return f"| {self.name} | `{self.command}` | {self.value} | {self.target} | {'PASS' if self.passed else 'FAIL'} |"


@dataclass(frozen=True)
class Settings:
    seeds: Sequence[int]
    folder: Path
    overrides: Sequence[str]


# -- whole trainings ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finished:
    """A run in its own process, with its seconds."""

    folder: Path
    summary: dict[str, Any]
    seconds: float
    cpu: float


def train_alone(name: str, words: Sequence[str], folder: Path) -> Finished | str:
    """`cohort train` with these arguments; the end of its errors if it fails."""
    name = f"{name}-{time.strftime('%H%M%S')}"
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    ended = subprocess.run(
        [COHORT, "train", *words, f"name={name}", f"runs_folder={folder}"], capture_output=True, text=True, check=False
    )
    seconds, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode:
        return f"exit code {ended.returncode}: {ended.stderr.strip()[-300:]!r}"
    summary = json.loads((folder / name / "summary.json").read_text(encoding="utf-8"))
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Finished(folder / name, summary, seconds, cpu)


def gain(found: dict[str, Any], what: str) -> float:
    return found["after"][what]["value"] - found["before"][what]["value"]


def both(found: dict[str, Any], what: str) -> str:
    return f"{percent(found['before'][what])} → {percent(found['after'][what])}"


def smollm2(settings: Settings) -> list[Figure]:
    """`cohort train smollm2`, the real model on a CPU, for each seed."""
    figures = []
    for seed in settings.seeds:
        words = ["smollm2", f"seed={seed}", *settings.overrides]
        name, command = f"smollm2, seed {seed}", " ".join(["cohort train", *words])
        run = train_alone(f"smollm2-seed-{seed}", words, settings.folder)
        if isinstance(run, str):
            figures.append(Figure(name, command, run, "runs", False))
            continue
        sets = run.summary["eval"]["sets"]
        for label, what, points in (("new_rows", "pass@1", 60), ("new_rows", "greedy", 40), ("new_kind", "pass@1", 30)):
            found = sets[label]
            apart = found["before"][what]["high"] < found["after"][what]["low"]
            figures.append(Figure(f"{name}, {label}: {what}", command, both(found, what), f"up ≥ {points} points, intervals apart",
                                  gain(found, what) >= points / 100 and apart))  # fmt: skip
        time_used = f"{run.seconds:.0f} s, {run.cpu:.0f} CPU seconds"
        target = f"≤ {SMOLLM2_SECONDS:.0f} s, ≤ {SMOLLM2_CPU_SECONDS:.0f} CPU seconds"
        figures.append(Figure(f"{name}: time", command, time_used, target,
                              run.seconds <= SMOLLM2_SECONDS and run.cpu <= SMOLLM2_CPU_SECONDS))  # fmt: skip
    return figures


def addition(settings: Settings) -> list[Figure]:
    """`cohort train`, the model that learns addition from scratch, for each seed."""
    figures = []
    for seed in settings.seeds:
        figures += addition_of(seed, settings)
    return figures


def addition_of(seed: int, settings: Settings) -> list[Figure]:
    words = [f"seed={seed}", *settings.overrides]
    name, command = f"addition, seed {seed}", " ".join(["cohort train", *words])
    run = train_alone(f"addition-seed-{seed}", words, settings.folder)
    if isinstance(run, str):
        return [Figure(name, command, run, "runs", False)]
    found = run.summary["eval"]
    first_row = json.loads((run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[0])
    problems = first_set(run.summary)["after"]["problems"]
    shared = shared_prompts(run.folder)
    return [
        Figure(
            f"{name}: pass@1", command, both(found, "pass@1"), "up ≥ 30 points to ≥ 90 %",
            gain(found, "pass@1") >= 0.30 and found["after"]["pass@1"]["value"] >= 0.90,
        ),
        Figure(f"{name}: greedy", command, both(found, "greedy"), "up ≥ 10 points", gain(found, "greedy") >= 0.10),
        Figure(f"{name}: pass@8", command, both(found, "pass@8"), "not lower", gain(found, "pass@8") >= 0.0),
        Figure(
            f"{name}: held-out problems", command, f"{problems:.0f} problems, {shared} of them in training",
            "≥ 500, none in training", problems >= 500 and shared == 0,
        ),
        Figure(f"{name}: seconds", command, f"{run.seconds:.0f} s", f"≤ {ADDITION_SECONDS:.0f} s", run.seconds <= ADDITION_SECONDS),
        Figure(
            f"{name}: max log ratio at step 1", command, f"{first_row['rollout/mismatch_max']:.1e}", f"≤ {MISMATCH:.0e}",
            first_row["rollout/mismatch_max"] <= MISMATCH,
        ),
    ]  # fmt: skip


def first_set(summary: dict[str, Any]) -> dict[str, Any]:
    return next(iter(summary["eval"]["sets"].values()))


def percent(estimate: dict[str, float]) -> str:
    return f"{100 * estimate['value']:.1f} % [{100 * estimate['low']:.1f}, {100 * estimate['high']:.1f}]"


def shared_prompts(run: Path) -> int:
    """Held-out prompts that are also training or demonstration prompts, counted again from the recipe of the run."""
    from cohort.recipe.file import load_recipe
    from cohort.training import build

    recipe = load_recipe(run / "recipe.toml")
    data = build.load_data(recipe, build.Materials())
    column = recipe.prompts.prompt_column
    seen = {row[column] for row in data.train} | {
        row[column] for row in (data.demonstrations[1] if data.demonstrations else [])
    }
    # Addition commutes: the sum the other way round would be known too.
    seen |= {"+".join(reversed(text.removesuffix("=").split("+"))) + "=" for text in seen if text.endswith("=")}
    return sum(row[column] in seen for _, rows in data.sets.values() for row in rows)


# -- small figures -----------------------------------------------------------------------------------------------------


def help_seconds(settings: Settings) -> list[Figure]:
    best = min(timed([COHORT, "--help"]) for _ in range(5))
    return [Figure("help", "cohort --help", f"{best:.2f} s, best of 5", f"< {HELP_SECONDS} s", best < HELP_SECONDS)]


def doctor_seconds(settings: Settings) -> list[Figure]:
    seconds = timed([COHORT, "doctor"])
    return [Figure("doctor", "cohort doctor", f"{seconds:.0f} s", f"< {DOCTOR_SECONDS:.0f} s", seconds < DOCTOR_SECONDS)]


def timed(command: Sequence[str]) -> float:
    started = time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    return time.monotonic() - started


def lines(settings: Settings) -> list[Figure]:
    loop = count_lines([PACKAGE / "loop.py"])
    files = sorted(PACKAGE.rglob("*.py"))
    total = count_lines(files)
    return [
        Figure("lines of the loop", "wc -l src/cohort/loop.py", str(loop), f"≤ {LOOP_LINES}", loop <= LOOP_LINES),
        Figure(
            "lines of the package",
            "find src/cohort -name '*.py' | xargs wc -l",
            f"{total} in {len(files)} files",
            "stated",
            True,
        ),
    ]


def count_lines(files: Sequence[Path]) -> int:
    return sum(file.read_bytes().count(b"\n") for file in files)


# -- rollouts ----------------------------------------------------------------------------------------------------------


def rollouts(settings: Settings) -> list[Figure]:
    """Sampled tokens per second on the addition model: the local engine and model.generate take turns on the same prompts.

    The model is that of `cohort train` after a short cold start, so that completions stop where they should. Both draw 32 prompts x 8
    at temperature 1 with its limit; tokens up to and including the stop are counted for both.
    """
    import torch

    from cohort.engine import sample_groups
    from cohort.types import NoiseKey

    model, tokenizer, engine, prompts, sampling = addition_model(settings)
    ids = torch.tensor([prompt.token_ids for prompt in prompts for _ in range(sampling.group_size)])  # all of one length
    speeds: dict[str, list[float]] = {"local": [], "generate": []}
    for turn in range(-1, 3):  # the first turn warms up and is not counted
        started = time.monotonic()
        groups = sample_groups(engine, prompts, sampling, NoiseKey(turn + 1, "train", 1))
        ours = sum(completion.length for group in groups for completion in group) / (time.monotonic() - started)
        torch.manual_seed(turn + 1)
        started = time.monotonic()
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
            max_new_tokens=sampling.max_completion_tokens, pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        theirs = int((out[:, ids.shape[1] :] != tokenizer.pad_token_id).sum()) / (time.monotonic() - started)
        if turn >= 0:
            speeds["local"].append(ours)
            speeds["generate"].append(theirs)
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    shown = ", ".join(f"{name} {medians[name]:.0f} tok/s ({min(v):.0f} to {max(v):.0f})" for name, v in speeds.items())
    return [
        Figure(
            "rollouts of the addition model", "python benchmarks/prove.py --only rollouts",
            f"{shown}: {medians['local'] / medians['generate']:.1f} x, median of 3, {torch.get_num_threads()} threads",
            "not slower than model.generate", medians["local"] >= medians["generate"],
        )
    ]  # fmt: skip


def addition_model(settings: Settings) -> tuple[Any, Any, Any, Any, Any]:
    """The addition model after 60 supervised batches: its model twice (the engine's own, and plain transformers), prompts, sampling."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from cohort.recipe.file import find_recipe
    from cohort.session import start
    from cohort.training import build

    words = ["num_steps=0", "cold_start.num_steps=60", "cold_start.until_success=1.0", "evaluation.samples=0"]
    name = f"rollouts-{time.strftime('%H%M%S')}"
    recipe = find_recipe("", [*words, "monitors.console=false", f"name={name}", f"runs_folder={settings.folder}"])
    folder = start(recipe).model
    data = build.load_data(recipe, build.Materials())
    policy = build.load_policy(recipe, data, folder)
    sampling = build.make_training_sampling(find_recipe("", []), policy)
    prompts = build.encode_data(recipe, data, policy, sampling).train
    length = len(prompts[0].token_ids)
    same = [prompt for prompt in prompts if len(prompt.token_ids) == length][:32]
    engine, _ = build.make_engine(recipe, policy)
    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder), engine, same, sampling


# -- the family --------------------------------------------------------------------------------------------------------

LEARNS_NOT = {"dpo:data=start": "falls: chosen and rejected sink together (docs/algorithms.md)"}
"""Methods that do not improve here, with the reason that was found; each of the others must."""


FAMILY = {
    "family-1": ("grpo", "process=column_addition_process", "dr_grpo", "dapo", "reinforce++"),
    "family-2": ("reinforce++_baseline", "rloo", "gspo", "cispo", "ppo"),
    "family-3": ("online_rft", "rft", "sft", "dpo:data=start", "online_dpo=dpo:data=policy"),
}
"""The contenders of family.sh in three parts: two minutes a run, three seeds each."""


def family(settings: Settings, part: str) -> list[Figure]:
    """Every algorithm from the same cold start per seed, with the same budget."""
    output = settings.folder / part
    command = [str(ROOT / "benchmarks" / "family.sh"), str(output), "2", sys.executable, *FAMILY[part]]
    subprocess.run(command, check=True, cwd=ROOT)
    figures = []
    for contender in json.loads((output / "compare.json").read_text(encoding="utf-8"))["contenders"]:
        numbers = contender["over_seeds"]["held_out"]
        before, after = numbers["before"]["pass@1"], numbers["after"]["pass@1"]
        shown = f"{100 * before['mean']:.1f} → {100 * after['mean']:.1f} % [{100 * after['min']:.1f}, {100 * after['max']:.1f}]"
        reason = LEARNS_NOT.get(contender["label"], "")
        passed = after["min"] > before["max"] if not reason else after["mean"] < before["mean"]
        figures.append(
            Figure(f"family: {contender['label']}", "benchmarks/family.sh", shown, reason or "up for every seed", passed)
        )
    return figures


def memory(settings: Settings) -> list[Figure]:
    """Peak memory of GRPO and PPO with the same model and batch."""
    target = settings.folder / "memory.json"
    command = ["benchmarks/memory.py", "--device", "cpu", "--output", str(target)]
    subprocess.run([sys.executable, *command], check=True, cwd=ROOT, capture_output=True)
    methods = json.loads(target.read_text(encoding="utf-8"))["methods"]
    peaks = {name: measured["peak_bytes"] for name, measured in methods.items()}
    shares = {name: peaks[name] / peaks["ppo"] for name in ("grpo", "grpo_no_reference")}
    return [
        Figure(f"peak memory: {name} / ppo", " ".join(command[:3]), f"{share:.2f}", f"≤ {limit}", share <= limit)
        for (name, share), limit in zip(shares.items(), (0.7, 0.6), strict=True)
    ]


def iterative(settings: Settings) -> list[Figure]:
    """Three iterations against a learned reward model, on a CPU."""
    name = f"iterative-{time.strftime('%H%M%S')}"
    words = ["train", "iterative_addition", f"name={name}", f"runs_folder={settings.folder}"]
    subprocess.run([COHORT, *words], check=True, capture_output=True)
    run = settings.folder / name
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    accuracy = [row["reward_model/accuracy"] for row in rows if row["step"] in (1, 16, 31)]
    before, after = summary["eval"]["before"]["pass@1"], summary["eval"]["after"]["pass@1"]
    shown = f"{percent(before)} → {percent(after)}; pairs ranked right {', '.join(f'{100 * a:.0f} %' for a in accuracy)}"
    target = "up, three fits"
    return [
        Figure(
            "iterative", " ".join(["cohort", *words[:2]]), shown, target, after["low"] > before["high"] and len(accuracy) == 3
        )
    ]


# -- rewards -----------------------------------------------------------------------------------------------------------


def jail(settings: Settings) -> list[Figure]:
    """What the jail costs, and ten thousand runs of it. Every hostile program by tier and user is a test (make prove)."""
    return [
        verdict_of("overhead of the jail", ["benchmarks/jail.py", "overhead"], "≤ 50 ms over bare Python"),
        verdict_of("soak of the jail", ["benchmarks/jail.py", "soak", "--runs", "10000"], "nothing leaked, 0 rewarded"),
    ]


def math_rewards(settings: Settings) -> list[Figure]:
    command = ["benchmarks/math_rewards.py"]
    return [verdict_of("math_answer", command, "table exact, bombs within limits, 512 in 30 s")]


def faulty_rewards(settings: Settings) -> list[Figure]:
    command = ["benchmarks/faulty_rewards.py"]
    return [verdict_of("200 steps with 5 % reward faults", command, "finishes, counts each, improves")]


def soak_servers(settings: Settings) -> list[Figure]:
    command = ["benchmarks/soak_servers.py", str(settings.folder / "soak")]
    target = "finishes; every step once; the weights of the run without faults"
    return [verdict_of("200 steps on two vLLM servers, 20 random faults", command, target)]


# -- findings ----------------------------------------------------------------------------------------------------------


def findings(settings: Settings) -> list[Figure]:
    """Runs made to fail and healthy ones: how many are found, how early, and how many alarms are false."""
    out = settings.folder / "findings"
    command = ["benchmarks/findings.py", "--out", str(out), "--json", str(out / "findings.json")]
    ended = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    if not (out / "findings.json").is_file():
        return [Figure("findings", f"python {command[0]}", f"{ended.stderr.strip()[-300:]!r}", "runs", False)]
    print(ended.stdout)
    made = json.loads((out / "findings.json").read_text(encoding="utf-8"))["figures"]
    missed, bound = ", ".join(made["missed"]) or "none", made["bound"]
    share = f"{made['found']} of {made['pathologies']}, {made['found_by_alarm']} of them by an alarm; missed: {missed}"
    lead = f"median {made['median_lead']} steps; {made['found_before_the_fall']} of {made['found_and_fell']} before the fall"
    confident = f": the rate is below {bound:.0%} with 95 % confidence" if bound else ""
    alarms = f"{made['false_alarms']} in {made['healthy']} runs{confident}"
    script = f"python {command[0]}"
    return [
        Figure("findings: pathologies found", script, share, "of at least 15 nine tenths", made["found"] >= 0.9 * made["pathologies"] >= 13.5),
        Figure("findings: lead", script, lead, "stated", True),
        Figure("findings: false alarms", script, alarms, "0 in 30", not made["false_alarms"] and made["healthy"] >= 30),
    ]  # fmt: skip


def dashboard(settings: Settings) -> list[Figure]:
    """Pages of a very long run and of huge files, and the CPU that following a run takes."""
    target = "a page of 10,000 steps and 1 million rollouts, or of 1 GB, within 2 s; under 2 % of a core"
    return [verdict_of("the dashboard's cost", ["benchmarks/dashboard.py"], target)]


def record(settings: Settings) -> list[Figure]:
    """Index, events and single tokens, on the addition run."""
    return [verdict_of("the record's cost", ["benchmarks/record.py"], "at most 1 % of a step and 2 MB")]


# -- speed -------------------------------------------------------------------------------------------------------------


def speed(settings: Settings) -> list[Figure]:
    """Rollouts and steps compared with HF generate and TRL in the same run, with the targets of speed_cpu.py."""
    from speed_cpu import CASES

    folder = settings.folder / "speed"
    script = ["benchmarks/speed_cpu.py", "--out", str(folder)]
    ended = subprocess.run([sys.executable, *script], cwd=ROOT, capture_output=True, text=True, check=False)
    figures = []
    for case in CASES:
        command, file = f"python {script[0]} --only {case.name}", folder / f"{case.name}.json"
        if not file.is_file():
            figures.append(Figure(f"speed: {case.name}", command, f"{ended.stderr.strip()[-300:]!r}", "runs", False))
            continue
        document = json.loads(file.read_text(encoding="utf-8"))
        for target in case.targets:
            _, what, measured, wanted, _ = target.make_row(case.name, document).strip("| ").split(" | ")
            figures.append(Figure(f"speed: {case.name}, {what}", command, measured, wanted, target.is_met(document)))
    return figures


def verdict_of(name: str, command: Sequence[str], target: str) -> Figure:
    """A benchmark that prints its own table and tells by its exit code whether every target was met."""
    ended = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    print(ended.stdout)
    return Figure(name, f"python {' '.join(command)}", f"exit code {ended.returncode}", target, ended.returncode == 0)


FIGURES: dict[str, Callable[[Settings], list[Figure]]] = {
    "lines": lines,
    "help": help_seconds,
    "doctor": doctor_seconds,
    "rollouts": rollouts,
    "speed": speed,
    "smollm2": smollm2,
    "addition": addition,
    "memory": memory,
    "iterative": iterative,
    **{part: partial(family, part=part) for part in FAMILY},
    "jail": jail,
    "math": math_rewards,
    "faults": faulty_rewards,
    "soak": soak_servers,
    "findings": findings,
    "dashboard": dashboard,
    "record": record,
}
