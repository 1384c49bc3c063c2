"""Steps per minute with a reward that takes 200 ms for every group: waiting for it, and training meanwhile.

    python benchmarks/slow_reward.py [--lags 0 1 2] [--steps 40] [--repeats 3] [--output docs/results/ahead/slow_reward.json]

The demo's model and task with a smaller step, on one thread. The reward sleeps for 200 ms a group, one group after the other or all side by side,
as a test suite or a judge elsewhere would: it costs this machine nothing. Lags take turns, so that whatever else the machine does meets all of
them.
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
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

GROUP_SECONDS = 0.2
GROUPS, GROUP_SIZE = 8, 8
SETTINGS = (
    f"prompts_per_step={GROUPS} group_size={GROUP_SIZE} cold_start.num_steps=40 evaluation.samples=0 checkpoints.every_steps=0 "
    "monitors.console=false"
)


def reward_slowly(completions: list[str], answer: list[str], together: bool = False, **_: Any) -> list[float]:
    """Right or wrong, after 200 ms for every group: one group after the other, or all of them side by side."""
    time.sleep(GROUP_SECONDS if together else GROUP_SECONDS * len(completions) / GROUP_SIZE)
    found = [re.search(r">(\d+)\s*$", text) for text in completions]
    return [float(match is not None and match.group(1) == gold) for match, gold in zip(found, answer, strict=True)]


def train(lag: int, together: bool, steps: int, folder: Path) -> dict[str, float]:
    """Medians of a run's steps, the first ones and the last left out: there the pipeline fills and empties."""
    name = f"lag-{lag}-{time.monotonic_ns()}"
    asked = str(together).lower()
    reward = f'[{{function="slow_reward:reward_slowly",timeout_s=60,args={{together={asked}}}}}]'
    words = [
        *SETTINGS.split(),
        f"num_steps={steps}",
        f"ahead.lag={lag}",
        f"name={name}",
        f"runs_folder={folder}",
        f"rewards={reward}",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    subprocess.run([sys.executable, "-m", "cohort", "train", "column_addition", *words], check=True, env=environment)
    lines = (folder / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines][3:-3]
    names = (
        "time/step",
        "time/wait",
        "time/update",
        "time/reward",
        "time/rollout",
        "ahead/sample_seconds",
        "ahead/score_seconds",
    )
    return {name: median(row[name] for row in rows) for name in names if name in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    cases = list(product((False, True), given.lags))
    found: dict[tuple[bool, int], list[dict[str, float]]] = {case: [] for case in cases}
    with tempfile.TemporaryDirectory() as folder:
        for _, (together, lag) in product(range(given.repeats), cases):
            run = train(lag, together, given.steps, Path(folder))
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
