"""Two checkouts of cohort side by side: the demo's steps, alternating, and the ratio of their medians.

    python benchmarks/alternate.py OLD NEW              7 runs of each, about five minutes on two quiet cores
    python benchmarks/alternate.py OLD NEW --runs 3

OLD and NEW are folders that hold src/cohort, for example a `git worktree` of an earlier commit. Each run is a process of its own:
20 steps of the demo after a short cold start, without evaluation. Its figures are the median of time/step from the third step on, and
the CPU seconds of the whole process, which say more on a machine that others share. The spread to hold a ratio against is that of OLD
against itself: the largest of its runs over the smallest.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
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


def time_run(checkout: Path, folder: Path) -> tuple[float, float]:
    """(median seconds of a step, CPU seconds of the run) with the code of one checkout."""
    command = [sys.executable, "-m", "cohort", "train", *SETTINGS, f"runs_folder={folder}", f"name={checkout.name}"]
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    before = count_cpu_seconds()
    subprocess.run(command, env=environment, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    spent = count_cpu_seconds() - before
    rows = [json.loads(line) for line in (folder / checkout.name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return median(row["time/step"] for row in rows[WARM_UP:]), spent


def count_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--runs", type=int, default=7)
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {"old": [], "new": []}
    for turn in range(options.runs):
        for name, checkout in (("old", options.old), ("new", options.new)):
            with tempfile.TemporaryDirectory() as folder:
                found[name].append(time_run(checkout.resolve(), Path(folder)))
        said = ", ".join(f"{name} {runs[-1][0]:.4f} s a step, {runs[-1][1]:.1f} s of CPU" for name, runs in found.items())
        print(f"run {turn + 1}: {said}", flush=True)
    for place, what in enumerate(("seconds a step", "CPU seconds")):
        old, new = ([run[place] for run in found[name]] for name in ("old", "new"))
        print(
            f"{what}: median old {median(old):.4f}, new {median(new):.4f}, ratio {median(new) / median(old):.4f}; "
            f"spread of old against old {max(old) / min(old) - 1:.1%}"
        )


if __name__ == "__main__":
    main()
