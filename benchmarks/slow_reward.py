"""Slow rewards: waiting for them, training meanwhile, and scoring completions while others are still sampled.

    python benchmarks/slow_reward.py [--lags 0 1 2] [--steps 40] [--repeats 3] [--output docs/results/ahead/slow_reward.json]
    python benchmarks/slow_reward.py --as-they-finish [--steps 40] [--output docs/results/ahead/as_they_finish.json]

The demo's model and task with a smaller step, on one thread. The first reward sleeps for 200 ms per group, in sequence or in parallel,
like a remote test suite or judge that costs this machine nothing. The second sleeps for 20 ms per completion on its own 16 workers, once
for all completions of a step and once as they finish. Cases take turns, so that noise of the machine affects all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

GROUP_SECONDS = 0.2
GROUPS, GROUP_SIZE = 8, 8
COMPLETION_SECONDS = 0.02
WORKERS = ThreadPoolExecutor(16)
AS_THEY_FINISH = (
    "prompts_per_step=128 sampling.slots=8 prompts.args.digits=1 model.scratch.hidden_size=32 model.scratch.intermediate_size=48 "
    "model.scratch.num_layers=1 model.scratch.num_heads=2 model.scratch.num_kv_heads=1"
)
"""Sampling takes about as long as scoring, and most completions are finished before the last ones begin."""
SETTINGS = (
    f"prompts_per_step={GROUPS} group_size={GROUP_SIZE} cold_start.num_steps=40 evaluation.samples=0 checkpoints.every_steps=0 "
    "monitors.console=false"
)


def reward_slowly(completions: list[str], answer: list[str], together: bool = False, **_: Any) -> list[float]:
    """Right or wrong, after 200 ms for every group: one group after the other, or all of them side by side."""
    time.sleep(GROUP_SECONDS if together else GROUP_SECONDS * len(completions) / GROUP_SIZE)
    return judge(completions, answer)


def judge(completions: list[str], answer: list[str]) -> list[float]:
    found = [re.search(r">(\d+)\s*$", text) for text in completions]
    return [float(match is not None and match.group(1) == gold) for match, gold in zip(found, answer, strict=True)]


def reward_each(completions: list[str], answer: list[str], wall_s: float = 60.0, **_: Any) -> list[float]:
    """Right or wrong, after 20 ms for every completion, 16 side by side."""
    list(WORKERS.map(lambda _: time.sleep(COMPLETION_SECONDS), completions))
    return judge(completions, answer)


reward_each.supervised = reward_each.per_completion = True  # type: ignore[attr-defined]


def train(words: Sequence[str], steps: int, folder: Path) -> dict[str, float]:
    """Medians of a run's steps, the first ones and the last left out: there the pipeline fills and empties."""
    name = f"run-{time.monotonic_ns()}"
    words = [*SETTINGS.split(), f"num_steps={steps}", f"name={name}", f"runs_folder={folder}", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    subprocess.run([sys.executable, "-m", "cohort", "train", "column_addition", *words], check=True, env=environment)
    lines = (folder / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines][3:-3]
    names = [*(f"time/{stage}" for stage in ("step", "wait", "update", "reward", "rollout"))]
    names += ["ahead/sample_seconds", "ahead/score_seconds"]
    return {name: median(row[name] for row in rows) for name in names if name in rows[0]}


def train_ahead(lag: int, together: bool, steps: int, folder: Path) -> dict[str, float]:
    asked = str(together).lower()
    reward = f'rewards=[{{function="slow_reward:reward_slowly",timeout_s=60,args={{together={asked}}}}}]'
    return train([f"ahead.lag={lag}", reward], steps, folder)


def compare_finishing(steps: int) -> dict[str, Any]:
    """One run whose steps in turn score after everything and as they finish: seconds against the longer of sampling and scoring alone."""
    from cohort.recipe.file import find_recipe
    from cohort.session import start
    from cohort.training.rollouts import RewardScorer

    early = RewardScorer.start_early_scoring
    RewardScorer.start_early_scoring = lambda self, prompts, step: early(self, prompts, step) if step % 2 else None  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        reward = 'rewards=[{function="slow_reward:reward_each",timeout_s=60}]'
        words = [*SETTINGS.split(), *AS_THEY_FINISH.split(), f"num_steps={steps}", f"runs_folder={folder}", reward]
        run = start(find_recipe("column_addition", words))
        rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()][3:]
    names = ("time/rollout", "time/reward", "reward/reward_each/seconds", "time/step", "rollout/length_mean")
    alone, early = ({name: median(row[name] for row in rows if row["step"] % 2 == odd) for name in names} for odd in (0, 1))
    # Sampling is the same work in both; the faster of the two counts.
    longer = max(min(alone["time/rollout"], early["time/rollout"]), alone["time/reward"])
    return {
        "steps": len(rows),
        "after everything": alone,
        "as they finish": early,
        "both stages / the longer one": {
            name: (row["time/rollout"] + row["time/reward"]) / longer for name, row in (("after", alone), ("as", early))
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--as-they-finish", action="store_true")
    given = parser.parse_args()
    if given.as_they_finish:
        measured = compare_finishing(given.steps)
        print(json.dumps(measured, indent=1))
        if given.output:
            given.output.write_text(json.dumps(measured, indent=1) + "\n", encoding="utf-8")
        return
    cases = list(product((False, True), given.lags))
    found: dict[tuple[bool, int], list[dict[str, float]]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory() as folder:
        for _, (together, lag) in product(range(given.repeats), cases):
            run = train_ahead(lag, together, given.steps, Path(folder))
            found[together, lag].append(run)
            print(f"{name_case(together)}, lag {lag}: {60 / run['time/step']:.1f} steps a minute", flush=True)
    table = [
        {"groups": name_case(together), "lag": lag}
        | {"steps_per_minute": [round(60 / run["time/step"], 1) for run in runs]}
        | {name: round(median(run[name] for run in runs), 4) for name in runs[0]}
        for (together, lag), runs in found.items()
    ]
    for row in table:
        print(row)
    if given.output:
        facts = {
            "group_seconds": GROUP_SECONDS,
            "groups": GROUPS,
            "group_size": GROUP_SIZE,
            "steps": given.steps,
            "table": table,
        }
        given.output.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def name_case(together: bool) -> str:
    return "side by side" if together else "one by one"


if __name__ == "__main__":
    main()
