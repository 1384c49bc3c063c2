"""Two checkouts of cohort side by side: the demo's steps, alternating, and the ratio of their medians.

    python benchmarks/alternate.py OLD NEW              7 runs of each, about five minutes on two quiet cores
    python benchmarks/alternate.py OLD NEW --runs 3

OLD and NEW are folders that hold src/cohort, for example a `git worktree` of an earlier commit. Each run is a process of its own:
20 steps of the demo after a short cold start, without evaluation. Its figure is the median of time/step from the third step on. The
spread to hold the ratio against is that of OLD against itself: the largest of its runs over the smallest.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

SETTINGS = (
    "train.num_steps=20", "cold_start.num_steps=40", "evaluation.samples=0", "monitors.console=false", "checkpoints.every_steps=0",
)  # fmt: skip
WARM_UP = 2
"""Steps that are not counted: the first ones compile and allocate."""


def time_step(checkout: Path, folder: Path) -> float:
    """Median seconds of a step with the code of one checkout."""
    command = [sys.executable, "-m", "cohort", "train", *SETTINGS, f"runs_folder={folder}", f"name={checkout.name}"]
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    subprocess.run(command, env=environment, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    rows = [json.loads(line) for line in (folder / checkout.name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return median(row["time/step"] for row in rows[WARM_UP:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {"old": [], "new": []}
    for turn in range(options.runs):
        for name, checkout in (("old", options.old), ("new", options.new)):
            with tempfile.TemporaryDirectory() as folder:
                seconds[name].append(time_step(checkout.resolve(), Path(folder)))
        print(f"run {turn + 1}: old {seconds['old'][-1]:.4f} s, new {seconds['new'][-1]:.4f} s a step", flush=True)
    old, new = median(seconds["old"]), median(seconds["new"])
    spread = max(seconds["old"]) / min(seconds["old"]) - 1
    print(f"median old {old:.4f} s, new {new:.4f} s: ratio {new / old:.4f}; spread of old against old {spread:.1%}")


if __name__ == "__main__":
    main()
