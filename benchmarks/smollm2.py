"""SmolLM2-135M-Instruct before and after GRPO, beside TRL, as stages that can be resumed.

    python benchmarks/smollm2.py --out OUT --on cpu                      three seeds of `smollm2`, and TRL to the same accuracy
    python benchmarks/smollm2.py --out OUT --on gpu --parallel 6         both recipes, objectives, adapters, and TRL
    python benchmarks/smollm2.py --out OUT --on gpu math-0 trl-math-0    some stages
    python benchmarks/smollm2.py --out OUT --on cpu --tiny               every stage at a size whose figures mean nothing
    python benchmarks/smollm2_table.py OUT                               tables and pictures from the JSON files

Stages run in the order given; the `rates` stages of a stage have to come before it. A stage ends with OUT/results/STAGE.json and is
skipped once that exists. A Cohort run that was interrupted resumes; a TRL run starts again. Learning rates are chosen by the training
rewards of runs with seed 100, which no other stage uses; held-out problems are looked at only after that. On a CPU a step of TRL takes
minutes, so TRL runs with two rates on the evaluated seed, and the better one counts: a choice with hindsight, in TRL's favour. All runs
start from the same weights and are evaluated on the same problems with the same noise.

Stages with `--parallel` share the GPU: their curves over steps are valid, their seconds are not. `clock` and `trl-clock` run alone and
give the seconds per step.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from speed_cases import read_revision

from cohort.recipe.file import dump_recipe, find_recipe

PEER = Path(__file__).parent / "peers" / "trl_smollm2.py"
METRICS = ("reward/mean", "reward/success", "rollout/length_mean", "rollout/truncated_share", "loss/kl_per_completion", "loss/entropy",
           "advantage/useful_groups", "rollout/mismatch_max", "time/step", "time/rollout", "time/update")  # fmt: skip
TUNING = ("seed=100", "evaluation.samples=0", "checkpoints.every_steps=0")


@dataclass(frozen=True)
class Stage:
    recipe: str
    settings: tuple[str, ...] = ()
    peer: bool = False
    rate: float = 0.0
    """Of the peer; 0: the best of its `rates` stages."""
    steps: int = 0
    """Of the peer; Cohort's are among the settings."""
    every: int = 0
    """The peer's weights are saved and evaluated after so many steps."""
    tuned_by: str = ""
    """Prefix of the stages whose training rewards choose this stage's learning rate."""
    micro_rows: int = 128
    """Rows that the peer forwards at a time: its logits of 512 rows take 60 GB, and on a CPU 16 rows take 8 GB."""


def tune(recipe: str, prefix: str, settings: Sequence[str], rates: Sequence[float], steps: int) -> dict[str, Stage]:
    return {
        f"rates-{prefix}-{rate:g}": Stage(recipe, (*TUNING, *settings, f"learning_rate={rate:g}", f"num_steps={steps}"))
        for rate in rates
    }


def tune_peer(recipe: str, prefix: str, rates: Sequence[float], steps: int) -> dict[str, Stage]:
    return {f"rates-{prefix}-{rate:g}": Stage(recipe, ("seed=100",), True, rate, steps) for rate in rates}


MATH = "smollm2_math"
WIDE = ("evaluation.samples=64", "evaluation.every_steps=0", "checkpoints.every_steps=0")
SHORT = ("evaluation.samples=16", "evaluation.every_steps=0", "checkpoints.every_steps=0")
OBJECTIVES = {
    "grpo": ("algorithm.name=grpo",),
    "dr_grpo": ("algorithm.name=dr_grpo",),
    "dapo": ("algorithm.name=dapo",),
    "maxrl": ("algorithm.name=maxrl",),
}
ADAPTERS = {"lora-16": ("model.lora.rank=16",), "lora-1": ("model.lora.rank=1",)}
GPU: dict[str, Stage] = {
    "clock": Stage(MATH, ("evaluation.samples=0", "seed=101", "num_steps=30")),
    "trl-clock": Stage(MATH, ("seed=101",), True, 1e-5, 8, micro_rows=512),
}
GPU |= tune(MATH, "duel", (), (5e-6, 1e-5, 2e-5, 4e-5), 16)
GPU |= tune_peer(MATH, "trl", (5e-6, 1e-5, 2e-5, 4e-5), 16)
DUEL = ("num_steps=40", "evaluation.every_steps=10", "evaluation.every_problems=128", "checkpoints.every_steps=0")
GPU |= {f"duel-{seed}": Stage(MATH, (f"seed={seed}", *DUEL), tuned_by="rates-duel-") for seed in range(3)}
GPU |= {f"trl-math-{seed}": Stage(MATH, (f"seed={seed}",), True, 0.0, 40, 10, "rates-trl-") for seed in range(3)}
for _name in ("grpo", "dr_grpo", "maxrl"):
    GPU |= tune(MATH, _name, OBJECTIVES[_name], (1e-5, 2e-5), 120)
GPU |= tune(MATH, "lora-16", ADAPTERS["lora-16"], (1e-4, 2e-4, 4e-4), 30)
GPU |= tune(MATH, "lora-1", ADAPTERS["lora-1"], (1e-4, 2e-4, 4e-4, 8e-4), 30)
GPU |= {f"math-{seed}": Stage(MATH, (f"seed={seed}", *WIDE), tuned_by="rates-grpo-") for seed in range(3)}
GPU |= {
    name: Stage(MATH, (*words, "seed=0", *SHORT), tuned_by=f"rates-{'grpo' if name == 'dapo' else name}-")
    for name, words in (OBJECTIVES | ADAPTERS).items()
    if name != "grpo"
}
GPU |= {f"json-{seed}": Stage("smollm2", (f"seed={seed}", "evaluation.samples=64")) for seed in range(3)}

LOOKS = ("evaluation.every_steps=4",)
CPU: dict[str, Stage] = {f"json-{seed}": Stage("smollm2", (f"seed={seed}",)) for seed in range(3)}
CPU |= {"json-looks": Stage("smollm2", ("seed=0", *LOOKS))}
CPU |= {f"trl-json-0-{rate:g}": Stage("smollm2", ("seed=0",), True, rate, 12, 4, micro_rows=4) for rate in (3e-5, 6e-5)}
TINY = ("num_steps=2", "prompts_per_step=2", "group_size=2", "max_completion_tokens=6", "evaluation.max_problems=2")


@dataclass
class Bench:
    out: Path
    stages: Mapping[str, Stage]
    tiny: bool
    jobs: dict[str, Future[None]] = field(default_factory=dict)
    """The stages of this call; a stage waits for those that choose its learning rate."""

    def run(self, name: str) -> None:
        file = self.out / "results" / f"{name}.json"
        if file.is_file():
            print(f"{name}: exists, {file}", flush=True)
            return
        stage, began = self.stages[name], time.monotonic()
        rate = stage.rate or self.choose_rate(stage.tuned_by)
        result = self.run_peer(name, stage, rate) if stage.peer else self.run_cohort(name, stage, rate)
        head = {"stage": name, "commit": read_revision(), "device": describe_device(), "recipe": stage.recipe, "settings": stage.settings,
                "learning_rate": rate, "wall": time.monotonic() - began}  # fmt: skip
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(head | result), encoding="utf-8")
        print(f"{name}: {head['wall']:.0f} s; {sum_up(result)}", flush=True)

    def choose_rate(self, prefix: str) -> float | None:
        """The rate whose short run had the highest mean training reward over its last quarter; None: the recipe's."""
        if not prefix:
            return None
        found = {}
        for name in (one for one in self.stages if one.startswith(prefix)):
            file = self.out / "results" / f"{name}.json"
            if name in self.jobs:
                self.jobs[name].result()
            if not file.is_file():
                raise SystemExit(f"{name} has not run, and it chooses the learning rate; run it first")
            rewards = json.loads(file.read_text(encoding="utf-8"))["metrics"]["reward/mean"]
            found[float(name.removeprefix(prefix))] = fmean(rewards[-max(1, len(rewards) // 4) :])
        return max(found, key=found.__getitem__)

    def write_recipe(self, name: str, stage: Stage, *settings: str) -> Path:
        file = self.out / "recipes" / f"{name}.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        tiny = TINY if self.tiny else ()
        chosen = [*stage.settings, *tiny, *settings, f"name={name}", f"runs_folder={self.out / 'runs'}"]
        file.write_text(dump_recipe(find_recipe(stage.recipe, chosen)), encoding="utf-8")
        return file

    def run_cohort(self, name: str, stage: Stage, rate: float | None) -> dict[str, Any]:
        folder = self.out / "runs" / name
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        if not (folder / "recipe.toml").is_file():
            settings = () if rate is None else (f"learning_rate={rate:g}",)
            recipe = self.write_recipe(name, stage, "monitors.also=['cpu_clock:CpuClock']", *settings)
            self.call(name, "-m", "cohort", "train", str(recipe))
        elif json.loads((folder / "summary.json").read_text(encoding="utf-8"))["status"] != "finished":
            self.call(name, "-m", "cohort", "resume", str(folder))
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        looks = folder / "evaluations.jsonl"
        return {
            "seconds": summary["seconds"],
            "paths": summary["paths"],
            "cpu": spent.ru_utime + spent.ru_stime - used.ru_utime - used.ru_stime,  # meaningful without --parallel
            "clock": read_clock(folder),
            "metrics": {key: [row.get(key) for row in rows] for key in METRICS},
            "eval": summary.get("eval"),
            "looks": [slim_look(json.loads(line)) for line in looks.read_text(encoding="utf-8").splitlines()] if looks.is_file() else [],
        }  # fmt: skip

    def run_peer(self, name: str, stage: Stage, rate: float | None) -> dict[str, Any]:
        from cohort.model.sources import find_folder

        folder = self.out / "trl" / name
        folder.mkdir(parents=True, exist_ok=True)
        recipe = self.write_recipe(name, stage)
        train = find_recipe(str(recipe), []).train
        steps, every = (2, 1 if stage.every else 0) if self.tiny else (stage.steps, stage.every)
        job = {"folder": str(folder), "recipe": str(recipe), "start": str(find_folder("smollm2")), "learning_rate": rate, "steps": steps,
               "every": every, "seed": find_recipe(str(recipe), []).seed,
               "micro_rows": min(train.prompts_per_step * train.group_size, stage.micro_rows)}  # fmt: skip
        (folder / "job.json").write_text(json.dumps(job, indent=2), encoding="utf-8")
        self.call(name, str(PEER), str(folder / "job.json"))
        timed = json.loads((folder / "steps.json").read_text(encoding="utf-8"))
        looks = []
        for weights in sorted(folder.glob("step-*/"), key=lambda one: int(one.name.partition("-")[2])):
            part = folder / f"{weights.name}.json"
            self.call(name, "-m", "cohort", "evaluate", str(weights), "--recipe", str(recipe), "--output", str(part))
            document = json.loads(part.read_text(encoding="utf-8"))
            found = next(one for one in document.values() if "per_problem" in one)
            looks.append(slim_look({**found, "step": int(weights.name.partition("-")[2])}))
        clock = {key: median(step[key] for step in timed["steps"][1:]) for key in ("cpu", "wall")}
        return {
            "version": timed["version"],
            "clock": clock,
            "steps": timed["steps"],
            "metrics": {"reward/mean": timed["rewards"]},
            "looks": looks,
        }

    def call(self, name: str, *command: str) -> None:
        log = self.out / "logs" / f"{name}.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        paths = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
        with log.open("a", encoding="utf-8") as stream:
            ended = subprocess.run(
                [sys.executable, *command], stdout=stream, stderr=stream, check=False, env=os.environ | {"PYTHONPATH": paths}
            )
        if ended.returncode:
            raise RuntimeError(
                f"{name}: {' '.join(command[:3])} ended with {ended.returncode}; the end of {log}:\n{log.read_text()[-1500:]}"
            )


def slim_look(found: Mapping[str, Any]) -> dict[str, Any]:
    """Step, and per set the numbers and every verdict: the tables are computed from these."""
    verdicts = {
        name: {key: one[key] for key in ("problem", "success", "greedy") if key in one}
        for name, one in found["per_problem"].items()
    }
    return {"step": found["step"], "sets": found.get("sets"), "per_problem": verdicts}


def read_clock(folder: Path) -> dict[str, float]:
    """Median CPU and wall seconds of a step without an evaluation."""
    lines = [json.loads(line) for line in (folder / "clock.jsonl").read_text(encoding="utf-8").splitlines()]
    pairs = [(old, new) for old, new in pairwise(lines) if new["step"] == old["step"] + 1 and not new["looked"]]
    return {clock: median(new[clock] - old[clock] for old, new in pairs) for clock in ("cpu", "wall")} if pairs else {}


def sum_up(result: Mapping[str, Any]) -> str:
    rewards = [value for value in result["metrics"]["reward/mean"] if value is not None]
    last = rewards[-max(1, len(rewards) // 4) :]
    return f"reward {fmean(rewards[:3]):.3f} -> {fmean(last):.3f}, step {result['clock'].get('wall', 0):.2f} s"


def describe_device() -> str:
    try:
        found = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=True
        )
        return found.stdout.strip().splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        from machine import describe_machine

        return f"{describe_machine()['cpu']}, threads: {os.environ.get('OMP_NUM_THREADS', 'all')}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", help="default: all of the device, in order; a prefix with * selects several")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--on", choices=("cpu", "gpu"), required=True)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--tiny", action="store_true")
    chosen = parser.parse_args()
    stages = CPU if chosen.on == "cpu" else GPU
    patterns = chosen.stages or ["*"]
    names = [name for one in patterns for name in stages if name == one or (one.endswith("*") and name.startswith(one[:-1]))]
    if not names:
        parser.error(f"no stage matches; stages: {', '.join(stages)}")
    bench = Bench(chosen.out.resolve(), stages, chosen.tiny)
    failed = 0
    with ThreadPoolExecutor(chosen.parallel) as pool:
        for name in dict.fromkeys(names):
            bench.jobs[name] = pool.submit(bench.run, name)
        for name, job in bench.jobs.items():
            try:
                job.result()
            except (Exception, SystemExit) as problem:
                failed += 1
                print(f"{name}: FAILED: {problem}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
