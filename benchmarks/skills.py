"""The demonstration: a model from nothing, before and after GRPO on a dozen reasoning-gym tasks, as stages that can be resumed.

    python benchmarks/skills.py --size small --out OUT                 all stages on a CPU with the twin of 1M parameters
    python benchmarks/skills.py --size big --out OUT                   on a GPU, in the order of importance
    python benchmarks/skills.py start grpo-0 --size big --out OUT      some of them
    python benchmarks/skills.py --size tiny --out OUT                  a try of everything in minutes; its figures mean nothing
    python benchmarks/skills_table.py OUT                              the tables, from the JSON files

A stage is one command of at most `--limit` seconds (480) that ends with OUT/results/STAGE.json. One that runs out of time saves itself, says so
with exit code 3 and goes on when it is called again; one whose JSON is there is not run again. Runs and weights stay in OUT/runs;
results are small. If the weights are lost and the JSON files are kept, the start is made again from its seed: on a CPU with
the same bits, on a GPU with the same recipe.

    probe      seconds of decoding, training and verdicts at the sizes to choose from
    rates      for the small twin: a short run of each objective at several learning rates, judged by its training rewards alone
    start      the cold start, and pass@1..k of every set before any GRPO
    grpo-0 -1 -2, dr_grpo, maxrl, lora-1, lora-16, maxrl-1 -2      a run of GRPO from the start, and pass@1..k after it

All runs begin with the same weights and are evaluated on the same problems with the same noise, so that differences are paired.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from speed_cases import read_revision

from cohort.evaluation.evaluate import ProblemVerdicts
from cohort.recipe.built_in import find_recipe
from cohort.recipe.file import dump_recipe

AGAIN = 3
"""Exit code of a stage that ran out of time and goes on when it is called again."""
VOTES = 16
CLOCK = "skills_clock:CpuClock"
LOOK = "held_out"
"""The set that runs look at on their way: what GRPO is trained on, all tasks and levels."""


@dataclass(frozen=True)
class Size:
    recipe: str
    samples: int
    """k of the largest pass@k."""
    problems: int
    """Of each set, at most, with so many samples."""
    words: tuple[str, ...] = ()
    """Overrides of the recipe for all stages."""
    probes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tuning_steps: int = 0
    """Of the runs of the stage `rates`; 0: the rates are those of the small twin."""


WIDTHS = {
    "20M": ("model.scratch.hidden_size=512", "model.scratch.intermediate_size=1408", "model.scratch.num_layers=7", "model.scratch.num_heads=8"),
    "76M": (),
}  # fmt: skip
TINY = (
    "cold_start.num_steps=6", "cold_start.until_success=1.0", "cold_start.source.args.count=8", "prompts.args.count=4", "num_steps=6", "prompts_per_step=4",
    "group_size=4", "evaluation.every_steps=1", "evaluation.every_problems=8", "evaluation.max_problems=4", "max_completion_tokens=16",
    "checkpoints.every_steps=2",
)  # fmt: skip
SIZES = {
    "big": Size("skills", 256, 32, (), WIDTHS),
    "small": Size("skills_small", 64, 16, (), {"1M": ()}, 40),
    "tiny": Size("skills_small", 4, 2, TINY, {"tiny": ()}, 2),
}
RUNS: dict[str, tuple[str, ...]] = {
    "grpo-0": ("seed=0",),
    "grpo-1": ("seed=1",),
    "grpo-2": ("seed=2",),
    "dr_grpo": ("algorithm.name=dr_grpo", "algorithm.kl_coef=0.005"),
    "maxrl": ("algorithm.name=maxrl", "algorithm.kl_coef=0.005"),
    "lora-1": ("model.lora.rank=1",),
    "lora-16": ("model.lora.rank=16",),
    "maxrl-1": ("algorithm.name=maxrl", "algorithm.kl_coef=0.005", "seed=1"),
    "maxrl-2": ("algorithm.name=maxrl", "algorithm.kl_coef=0.005", "seed=2"),
}
RATES = {"lora-1": 15.0, "lora-16": 5.0}
"""Learning rates as multiples of the recipe's, chosen by the stage `rates` at 1M parameters."""
TRIED = {
    "grpo-0": (0.25, 0.5, 1, 2),
    "dr_grpo": (0.25, 0.5, 1, 2),
    "maxrl": (0.25, 0.5, 1, 2),
    "lora-1": (1.5, 5, 15),
    "lora-16": (1.5, 5, 15),
}
TUNING = ("seed=100", "evaluation.samples=0")
"""A seed that no other stage has, and no look at held-out problems: a rate that was chosen by them would be judged by them twice."""
STAGES = ("probe", "start", "rates", *RUNS)


class OutOfTime(Exception):
    """The stage has saved itself and goes on when it is called again."""


@dataclass
class Bench:
    size: Size
    out: Path
    limit: float
    began: float

    @property
    def left(self) -> float:
        return self.limit - (time.monotonic() - self.began)

    def folder(self, name: str) -> Path:
        return self.out / "runs" / name

    def call_cohort(self, *words: str) -> None:
        """A cohort command; interrupted where the stage's time ends, which saves a run."""
        command = [sys.executable, "-m", "cohort", *words]
        log = self.out / "log.txt"
        with log.open("a", encoding="utf-8") as stream:
            stream.write(f"$ cohort {' '.join(words)}\n")
            stream.flush()
            # The clock is a monitor of this folder.
            paths = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
            environment = os.environ | {"PYTHONPATH": paths}
            process = subprocess.Popen(command, stdout=stream, stderr=stream, start_new_session=True, env=environment)
            try:
                code = process.wait(timeout=max(1.0, self.left))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                process.wait()
                raise OutOfTime(" ".join(words)) from None
        if code:
            raise SystemExit(f"cohort {words[0]} ended with {code}; the end of {log}:\n{log.read_text()[-2000:]}")

    def train(self, name: str, words: Sequence[str]) -> Path:
        """A run that is finished when this returns: begun, or resumed where it stopped."""
        folder = self.folder(name)
        recipe = self.out / "recipes" / f"{name}.toml"
        if not (folder / "recipe.toml").is_file():
            recipe.parent.mkdir(parents=True, exist_ok=True)
            recipe.write_text(dump_recipe(self.choose_recipe(name, words)), encoding="utf-8")
            self.call_cohort("train", str(recipe))
        elif read_status(folder) != "finished":
            self.call_cohort("resume", str(folder))
        return folder

    def choose_recipe(self, name: str, words: Sequence[str]) -> Any:
        """The recipe of the size with one set to look at: all of them are evaluated by themselves, with more samples."""
        recipe = find_recipe(self.size.recipe, [*self.size.words, *words, f"name={name}", f"runs_folder={self.out / 'runs'}"])
        sets = {LOOK: recipe.evaluation.sets[LOOK]}
        return recipe.model_copy(update={"evaluation": recipe.evaluation.model_copy(update={"sets": sets})})

    def evaluate(self, name: str, samples: int) -> dict[str, Any]:
        """Every set of the recipe: per problem the verdicts, per set the numbers; kept, so that it is done once."""
        file = self.out / "evaluations" / f"{name}-{samples}.json"
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            recipe = self.out / "recipes" / "all-sets.toml"
            chosen = find_recipe(self.size.recipe, self.size.words)
            sets = {
                key: one for key, one in chosen.evaluation.sets.items() if key != LOOK
            }  # which holds some of the others' problems
            whole = chosen.model_copy(update={"evaluation": chosen.evaluation.model_copy(update={"sets": sets})})
            recipe.write_text(dump_recipe(whole), encoding="utf-8")
            part = file.with_suffix(".part")
            self.call_cohort(
                "evaluate", str(self.folder(name)), "--recipe", str(recipe), "--set", f"evaluation.samples={samples}",
                "--set", f"evaluation.max_problems={self.size.problems}", "--set", f"evaluation.greedy={'true' if samples == min(VOTES, self.size.samples) else 'false'}", "--output", str(part),
            )  # fmt: skip
            part.rename(file)
        document = json.loads(file.read_text(encoding="utf-8"))
        return slim_evaluation(next(one for one in document.values() if "per_problem" in one))


def slim_evaluation(found: Mapping[str, Any]) -> dict[str, Any]:
    """What the tables are made of: every verdict, and the votes, which verdicts do not tell. All else follows from these."""
    verdicts = {name: {key: one[key] for key in ("problem", "success", "greedy")} for name, one in found["per_problem"].items()}
    votes = {
        name: {
            what: {"value": number["value"]} for what, number in numbers.items() if what.startswith("maj@") or what == "greedy"
        }
        for name, numbers in found["sets"].items()
    }
    return {"per_problem": verdicts, "sets": votes, "seconds": found["seconds"]}


def read_status(folder: Path) -> str:
    file = folder / "summary.json"
    return str(json.loads(file.read_text(encoding="utf-8")).get("status")) if file.is_file() else "begun"


def make_start(bench: Bench) -> Path:
    """The cold start alone; also what every later stage makes again if the weights were lost."""
    return bench.train("start", ["train.num_steps=0", "evaluation.samples=0"])


def run_start(bench: Bench) -> dict[str, Any]:
    folder = make_start(bench)
    return {"seconds": read_seconds(folder), **evaluate_all(bench, "start")}


def train_from_start(bench: Bench, label: str, name: str, multiple: float, words: Sequence[str]) -> tuple[Path, float]:
    """A run of a kind from the start at a multiple of the recipe's learning rate: its folder, and the rate."""
    rate = find_recipe(bench.size.recipe, bench.size.words).optimizer.learning_rate * multiple
    begin = [f"model.source={make_start(bench) / 'model'}", "cold_start.num_steps=0", f"learning_rate={rate}"]
    return bench.train(label, [*begin, *RUNS[name], *words]), rate


def run_rates(bench: Bench) -> dict[str, Any]:
    """Mean success on the training prompts of the last quarter of steps, for each kind of run and rate."""
    found: dict[str, Any] = {}
    words = [*TUNING, f"num_steps={bench.size.tuning_steps}"]
    for name, multiples in TRIED.items():
        for multiple in multiples:
            folder, rate = train_from_start(bench, f"rates-{name}-{multiple:g}", name, multiple, words)
            successes = pick_metrics(read_rows(folder))["reward/success"]
            last = [value for value in successes[-max(1, len(successes) // 4) :] if value is not None]
            found.setdefault(name, []).append({"multiple": multiple, "rate": rate, "success": sum(last) / len(last)})
    return {"rates": found, "words": words}


def read_rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def run_grpo(bench: Bench, name: str) -> dict[str, Any]:
    folder, rate = train_from_start(bench, name, name, RATES.get(name, 1.0), [f"monitors.also=['{CLOCK}']"])
    rows = read_rows(folder)
    return {"seconds": read_seconds(folder), "words": list(RUNS[name]), "learning_rate": rate, "curve": list_looks(folder, rows),
            "clock": read_clock(folder), "metrics": pick_metrics(rows), **evaluate_all(bench, name)}  # fmt: skip


def evaluate_all(bench: Bench, name: str) -> dict[str, Any]:
    """pass@1..k with k samples, and maj@16 and greedy with 16."""
    votes = min(VOTES, bench.size.samples)
    return {"votes": bench.evaluate(name, votes), "passes": bench.evaluate(name, bench.size.samples)}


def list_looks(folder: Path, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Every look at the first set: step, tokens sampled and seconds trained until then, and pass@1 on the problems that all looks have."""
    looks = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text(encoding="utf-8").splitlines()]
    verdicts = [ProblemVerdicts.from_json(look["per_problem"][LOOK]) for look in looks]
    common = set.intersection(*(set(one.problems) for one in verdicts))
    found = []
    for look, one in zip(looks, verdicts, strict=True):
        done = [row for row in rows if row["step"] <= look["step"]]
        rates = one.success_rates()
        found.append({
            "step": look["step"], "tokens": sum(row["rollout/tokens"] for row in done),
            "seconds": sum(row["time/step"] - row.get("time/evaluate", 0.0) for row in done),
            "value": sum(rates[problem] for problem in common) / len(common), "problems": len(common),
        })  # fmt: skip
    return found


def read_clock(folder: Path) -> dict[str, float]:
    """Median CPU and wall seconds of a step, over those in which nothing was looked at."""
    lines = [json.loads(line) for line in (folder / "clock.jsonl").read_text(encoding="utf-8").splitlines()]
    pairs = [
        (old, new)
        for old, new in pairwise(lines)
        if new["step"] == old["step"] + 1 and not new["looked"] and new["cpu"] > old["cpu"]
    ]
    return {clock: median(new[clock] - old[clock] for old, new in pairs) for clock in ("cpu", "wall")}


def pick_metrics(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """Per step: what is told of the way."""
    names = (
        "reward/success",
        "advantage/useful_groups",
        "loss/kl_per_completion",
        "loss/entropy",
        "rollout/length_mean",
        "time/step",
    )
    return {name: [row.get(name) for row in rows] for name in names}


def read_seconds(folder: Path) -> float:
    return float(json.loads((folder / "summary.json").read_text(encoding="utf-8"))["seconds"])


def run_probe(bench: Bench) -> dict[str, Any]:
    """A short cold start and a few steps at each size: what decoding, training and verdicts take."""
    found: dict[str, Any] = {}
    for label, words in bench.size.probes.items():
        steps = ["cold_start.num_steps=20", "cold_start.until_success=1.0", "num_steps=6", "evaluation.samples=0"]
        folder = bench.train(f"probe-{label}", [*words, *steps])
        rows = read_rows(folder)[2:]
        names = ("time/rollout", "time/reward", "time/update", "time/step", "rollout/tokens", "perf/rollout_tokens_per_second")
        found[label] = {name: sum(row[name] for row in rows) / len(rows) for name in names} | {"seconds": read_seconds(folder)}
    return {"sizes": found}


def run_stage(name: str, size: str, out: Path, limit: float) -> int:
    """0: done, and its JSON is there; AGAIN: it saved itself and goes on when it is called again."""
    file = out / "results" / f"{name}.json"
    if file.is_file():
        print(f"{name}: done before, {file}")
        return 0
    out.mkdir(parents=True, exist_ok=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    began, used = time.monotonic(), count_cpu_seconds()
    bench = Bench(SIZES[size], out, limit, began)
    spent_file = out / f"{name}.spent.json"
    spent = json.loads(spent_file.read_text(encoding="utf-8")) if spent_file.is_file() else {"wall": 0.0, "cpu": 0.0}
    ended = True
    result: dict[str, Any] = {}
    try:
        alone = {"probe": run_probe, "start": run_start, "rates": run_rates}
        result = alone[name](bench) if name in alone else run_grpo(bench, name)
    except OutOfTime as words:
        print(f"{name}: out of time in `cohort {words}`, which saved itself; call the stage again")
        ended = False
    spent = {"wall": spent["wall"] + time.monotonic() - began, "cpu": spent["cpu"] + count_cpu_seconds() - used}
    spent_file.write_text(json.dumps(spent), encoding="utf-8")
    if not ended:
        return AGAIN
    head = {
        "stage": name,
        "size": size,
        "recipe": SIZES[size].recipe,
        "commit": read_revision(),
        "device": describe_device(),
        "spent": spent,
    }
    file.write_text(json.dumps(head | result), encoding="utf-8")
    print(f"{name}: {spent['wall']:.0f} s by the clock, {spent['cpu']:.0f} s of CPU, {file}")
    return 0


def count_cpu_seconds() -> float:
    """Of all processes that this one has waited for, and their own."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def describe_device() -> str:
    """The GPU, or the CPU with the threads that were allowed."""
    try:
        found = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=True
        )
        return found.stdout.strip().splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        from cohort.tools.bench.machine import describe_machine

        return f"{describe_machine()['cpu']}, threads: {os.environ.get('OMP_NUM_THREADS', 'all')}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="The demonstration, stage by stage.")
    parser.add_argument("stages", nargs="*", help=f"of {', '.join(STAGES)}; none: all of them, rates where they are tuned")
    parser.add_argument("--size", choices=list(SIZES), required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=480.0, help="seconds of one stage")
    chosen = parser.parse_args(arguments)
    if unknown := [name for name in chosen.stages if name not in STAGES]:
        parser.error(f"no stage {unknown[0]!r}; there are {', '.join(STAGES)}")
    for name in chosen.stages or [one for one in STAGES if one != "rates" or SIZES[chosen.size].tuning_steps]:
        if code := run_stage(name, chosen.size, chosen.out.resolve(), chosen.limit):
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
