"""The cost of sampling ahead in quality: the demo at several lags and seeds, with and without a weight on older tokens.

    python benchmarks/lag.py [--lags 0 1 2 4] [--seeds 0 1 2] [--steps 60] [--weights off token_truncate] [--output docs/results/ahead/lag.json]

The demo with a quarter of its prompts per step, so that 24 runs take minutes. All runs of a seed start from one cold start, and all
runs have the same evaluation problems. One thread per run, two runs at a time. Compares held-out pass@1 at the end and the mean reward of
the last ten steps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

COMMON = "prompts_per_step=8 evaluation.max_problems=128 evaluation.every_steps=0 evaluation.problems_seed=0 checkpoints.every_steps=0 monitors.console=false"
LAST = 10
"""Steps that the reward at the end is averaged over."""
LEFT_OUT = ("all_carry", "four_digits")
"""Sets of the demo that are not evaluated here; the first one is enough."""


def run_cohort(folder: Path, name: str, *words: str) -> Path:
    """A finished run of the demo."""
    command = [sys.executable, "-m", "cohort", "train", str(folder / "recipe.toml"), *COMMON.split(), *words]
    command += [f"name={name}", f"runs_folder={folder}"]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
    return folder / name


def write_recipe(folder: Path) -> None:
    """The demo with only its first evaluation set."""
    import tomllib

    import tomli_w

    from cohort.recipe.file import find_recipe_path

    tree = tomllib.loads(find_recipe_path("column_addition").read_text(encoding="utf-8"))
    for name in LEFT_OUT:
        del tree["evaluation"]["sets"][name]
    (folder / "recipe.toml").write_text(tomli_w.dumps(tree), encoding="utf-8")


def measure(run: Path) -> dict[str, Any]:
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    before, after = (summary["eval"][when]["pass@1"]["value"] for when in ("before", "after"))
    return {
        "before": before,
        "after": after,
        "reward": fmean(row["reward/mean"] for row in rows[-LAST:]),
        "clipped": fmean(row["loss/clip_low"] + row["loss/clip_high"] for row in rows),
        "ratio_max": max(row["loss/ratio_max"] for row in rows),
        "staleness": rows[-1].get("ahead/staleness_mean", 0.0),
        "seconds": round(summary["seconds"], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--weights", nargs="+", default=["off", "token_truncate"])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--limit-s", type=float, default=1e9, help="start no more runs after this many seconds")
    parser.add_argument("--side-by-side", type=int, default=2)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    began = time.monotonic()
    cases = list(product(given.seeds, given.lags, given.weights))
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(given.side_by_side) as pool:
        folder = Path(place)
        write_recipe(folder)
        starts = dict(zip(given.seeds, pool.map(lambda seed: start_seed(folder, seed), given.seeds), strict=True))

        def train(case: tuple[int, int, str]) -> dict[str, Any] | None:
            seed, lag, weight = case
            if time.monotonic() - began > given.limit_s:
                return None
            words = [
                f"model.source={starts[seed] / 'model'}",
                "cold_start.num_steps=0",
                f"num_steps={given.steps}",
                f"seed={seed}",
            ]
            run = run_cohort(
                folder, f"{seed}-{lag}-{weight}", *words, f"ahead.lag={lag}", f"algorithm.mismatch_weight={weight}"
            )
            found = {"seed": seed, "lag": lag, "weight": weight, **measure(run)}
            print(found, flush=True)
            return found

        runs = [run for run in pool.map(train, cases) if run is not None]
    table = []
    for weight, lag in product(given.weights, given.lags):
        chosen = [run for run in runs if (run["weight"], run["lag"]) == (weight, lag)]
        if not chosen:
            continue
        row: dict[str, Any] = {"weight": weight, "lag": lag, "runs": len(chosen)}
        for name in ("after", "reward", "clipped", "ratio_max"):
            values = [run[name] for run in chosen]
            row[name] = round(fmean(values), 4)
            row[f"{name}_std"] = round(stdev(values), 4) if len(values) > 1 else 0.0
        table.append(row)
        print(row)
    print(f"{time.monotonic() - began:.0f} s")
    if given.output:
        facts = {"steps": given.steps, "seeds": given.seeds, "table": table, "runs": runs}
        given.output.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def start_seed(folder: Path, seed: int) -> Path:
    return run_cohort(folder, f"start-{seed}", "num_steps=0", f"seed={seed}")


if __name__ == "__main__":
    main()
