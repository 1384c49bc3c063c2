"""Beside TRL, to the same accuracy: both train from the start of the demonstration on the same rows with the same reward function.

    python benchmarks/skills.py start grpo-0 grpo-1 grpo-2 --size small --out OUT      our side
    python benchmarks/skills_trl.py --size small --out OUT --tune 7.5e-5 1.5e-4 3e-4 6e-4 --steps 25        rates of TRL, side by side
    python benchmarks/skills_trl.py --size small --out OUT --seeds 0 1 2 --steps 90 --rate RATE             TRL's side, levels, drawing

Rates are told apart by the rewards on training prompts, as ours are (the stage `rates` of skills.py), with a seed of their own.

TRL's weights are saved every few steps and evaluated by `cohort evaluate` on the problems that our runs look at, with the same noise and as many
samples. Evaluations are outside of both clocks. A level is reached where the line between two looks crosses it. Seconds are steps
until there times the median seconds of a step, by the CPU clock of all processes of a trainer: on a machine that others use too the wall clock
measures them. What is resumable: a seed whose steps are there is not trained again, nor a look that is there evaluated.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from skills import LOOK, SIZES, Bench, run_stage
from speed_plot import COLOURS, svg, text

from cohort.data.rows import load_rows
from cohort.evaluation.evaluate import ProblemVerdicts
from cohort.recipe.built_in import find_recipe
from cohort.recipe.file import dump_recipe

PEER = Path(__file__).parent / "peers" / "trl_skills.py"
Curve = list[tuple[float, float]]
"""(step, pass@1) of every look."""


def train_peer(bench: Bench, name: str, seed: int, steps: int, rate: float, every: int) -> Path:
    """TRL's run of a name: its folder, with the weights after every `every` steps. One that is there is not run again."""
    folder = bench.out / "trl" / name
    if (folder / "done.json").is_file():
        return folder
    recipe = find_recipe(bench.size.recipe, bench.size.words)
    rows = bench.out / "trl" / "rows.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    nested = ("entry", "gym_args")  # a table of one type each: as text
    kept = ("prompt", "answer", "task")
    rows.write_text(
        "".join(
            json.dumps({key: row[key] for key in kept} | {key: json.dumps(row[key]) for key in nested}) + "\n"
            for row in load_rows(recipe.prompts, 0)
        ),
        encoding="utf-8",
    )
    job = {
        "folder": str(folder), "start": str(bench.folder("start") / "model"), "rows": str(rows), "pattern": recipe.rewards[0].args["pattern"],
        "prompts": recipe.train.prompts_per_step, "group": recipe.train.group_size, "micro_rows": recipe.train.prompts_per_step * recipe.train.group_size,
        "new": recipe.sampling.max_completion_tokens, "steps": steps, "learning_rate": rate, "warmup": recipe.optimizer.warmup_steps, "seed": seed,
        "every": every,
    }  # fmt: skip
    (folder / "job.json").write_text(json.dumps(job, indent=2), encoding="utf-8")
    with (folder / "log.txt").open("w", encoding="utf-8") as log:
        subprocess.run(
            [sys.executable, str(PEER), str(folder / "job.json")], stdout=log, stderr=log, check=True, env=dict(os.environ)
        )
    (folder / "job.json").rename(folder / "done.json")
    return folder


def tune_peer(bench: Bench, rates: Sequence[float], steps: int) -> list[dict[str, float]]:
    """Of each rate the mean reward on the training prompts over the last quarter of a short run."""
    found = []
    for rate in rates:
        folder = train_peer(bench, f"rate-{rate:g}", 100, steps, rate, steps)
        rewards = json.loads((folder / "steps.json").read_text(encoding="utf-8"))["rewards"]
        found.append({"rate": rate, "steps": len(rewards), "reward": fmean(rewards[-max(1, len(rewards) // 4) :])})
    return found


def evaluate_looks(bench: Bench, folder: Path, seed: int) -> Curve:
    """Every weight that was saved, on the problems that our runs look at on their way, with the noise of our run of the seed."""
    most = find_recipe(bench.size.recipe, bench.size.words).evaluation.every_problems
    recipe = bench.out / "recipes" / f"look-{seed}.toml"
    words = [f"evaluation.max_problems={most}", "evaluation.greedy=false", f"seed={seed}"]
    recipe.write_text(dump_recipe(bench.choose_recipe("look", words)), encoding="utf-8")
    curve: Curve = []
    for weights in sorted(
        (one for one in folder.glob("step-*") if one.is_dir()), key=lambda one: int(one.name.partition("-")[2])
    ):
        file = folder / f"{weights.name}.json"
        if not file.is_file():
            part = file.with_suffix(".part")
            bench.call_cohort("evaluate", str(weights), "--recipe", str(recipe), "--output", str(part))
            part.rename(file)
        document = json.loads(file.read_text(encoding="utf-8"))
        verdicts = ProblemVerdicts.from_json(
            next(one for one in document.values() if "per_problem" in one)["per_problem"][LOOK]
        )
        curve.append((float(weights.name.partition("-")[2]), fmean(verdicts.success_rates().values())))
    return curve


def find_crossing(curve: Curve, level: float) -> float | None:
    """The step at which the line through the looks first reaches the level; None: never."""
    for (step, value), (later, reached) in pairwise(curve):
        if value >= level:
            return step
        if reached >= level:
            return step + (later - step) * (level - value) / (reached - value)
    return curve[-1][0] if curve and curve[-1][1] >= level else None


def choose_levels(curves: Sequence[Curve]) -> list[float]:
    """A third, two thirds and all of the rise from the start to the lowest of the best looks: what every curve has reached."""
    start, top = curves[0][0][1], min(max(value for _, value in curve) for curve in curves)
    return [start + share * (top - start) for share in (1 / 3, 2 / 3, 1)]


def compare_sides(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Per level and seed: steps and CPU seconds of both, and their ratio."""
    levels = choose_levels([*(run["curve"] for run in ours.values()), *(run["curve"] for run in theirs.values())])
    rows = []
    for level in levels:
        for seed in theirs:
            steps = [find_crossing(side[seed]["curve"], level) for side in (ours, theirs)]
            seconds = [
                None if step is None else step * side[seed]["clock"]["cpu"]
                for step, side in zip(steps, (ours, theirs), strict=True)
            ]
            ratio = None if None in seconds or not seconds[0] else seconds[1] / seconds[0]
            rows.append({"level": level, "seed": seed, "steps": steps, "seconds": seconds, "ratio": ratio})
    return rows


def list_ticks(low: float, high: float) -> list[float]:
    """About six round numbers between the two."""
    rough = (high - low) / 6
    unit = 10 ** math.floor(math.log10(rough))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough)
    return [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def draw_curves(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """pass@1 against CPU seconds, a line for each seed."""
    lines = [
        (name, [(step * run["clock"]["cpu"], value) for step, value in run["curve"]])
        for name, side in (("cohort", ours), ("peer", theirs))
        for run in side.values()
    ]
    right = max(x for _, points in lines for x, _ in points)
    values = [y for _, points in lines for _, y in points]
    low, high = min(values) - 0.01, max(values) + 0.01
    width, height, left, bottom, top = 720, 340, 56, 40, 40

    def place(x: float, y: float) -> str:
        return f"{left + x / right * (width - left - 20):.1f},{height - bottom - (y - low) / (high - low) * (height - bottom - top):.1f}"

    parts = [text(0, 14, "held-out pass@1 against CPU seconds of training, one line per seed", weight="600")]
    for x in list_ticks(0, right):
        parts += [text(float(place(x, low).split(",")[0]), height - 18, f"{x:g} s", anchor="middle", size=11)]
    for y in list_ticks(100 * low, 100 * high):
        parts += [text(left - 6, float(place(0, y / 100).split(",")[1]) + 4, f"{y:g} %", anchor="end", size=11)]
    for name, points in lines:
        parts.append(
            f"<polyline fill='none' stroke='{COLOURS[name]}' stroke-width='2' points='{' '.join(place(x, y) for x, y in points)}'/>"
        )
    for row, (name, words) in enumerate((("cohort", "Cohort"), ("peer", "TRL 1.16"))):
        parts += [
            f"<rect x='{width - 130}' y='{24 + 18 * row}' width='12' height='12' fill='{COLOURS[name]}'/>",
            text(width - 112, 35 + 18 * row, words),
        ]
    return svg(width, height, parts)


def read_ours(bench: Bench, seed: int) -> dict[str, Any]:
    result = json.loads((bench.out / "results" / f"grpo-{seed}.json").read_text(encoding="utf-8"))
    return {
        "curve": [(look["step"], look["value"]) for look in result["curve"]],
        "clock": result["clock"],
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Beside TRL, to the same accuracy.")
    parser.add_argument("--size", choices=list(SIZES), required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("--every", type=int, default=15)
    parser.add_argument("--rate", type=float, default=0.0, help="TRL's learning rate; 0: the recipe's")
    parser.add_argument("--tune", type=float, nargs="+", default=[], help="rates to try, and nothing else")
    chosen = parser.parse_args(arguments)
    out = chosen.out.resolve()
    bench = Bench(SIZES[chosen.size], out, 1e9, 0.0)
    if chosen.tune:
        code = run_stage("start", chosen.size, out, 1e6)
        if not code:
            tuned = tune_peer(bench, chosen.tune, chosen.steps)
            (out / "trl-rates.json").write_text(json.dumps(tuned, indent=1), encoding="utf-8")
            print(json.dumps(tuned, indent=1))
        return code
    for stage in ("start", *(f"grpo-{seed}" for seed in chosen.seeds)):
        if code := run_stage(stage, chosen.size, out, 1e6):
            return code
    rate = chosen.rate or find_recipe(bench.size.recipe, bench.size.words).optimizer.learning_rate
    ours = {str(seed): read_ours(bench, seed) for seed in chosen.seeds}
    theirs: dict[str, Any] = {}
    for seed in chosen.seeds:
        folder = train_peer(bench, f"seed-{seed}", seed, chosen.steps, rate, chosen.every)
        timed = json.loads((folder / "steps.json").read_text(encoding="utf-8"))
        clock = {name: median(step[name] for step in timed["steps"][1:]) for name in ("cpu", "wall")}
        looks = evaluate_looks(bench, folder, seed)
        theirs[str(seed)] = {"curve": [ours[str(seed)]["curve"][0], *looks], "clock": clock, "version": timed["version"]}
    rows = compare_sides(ours, theirs)
    document = {
        "size": chosen.size,
        "learning_rate": rate,
        "steps": chosen.steps,
        "cohort": ours,
        "trl": theirs,
        "levels": rows,
    }
    (out / "results").mkdir(parents=True, exist_ok=True)
    (out / "trl.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    (out / "trl.svg").write_text(draw_curves(ours, theirs), encoding="utf-8")
    for row in rows:
        print(json.dumps(row))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
