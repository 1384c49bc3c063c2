"""Two checkouts of cohort side by side: the demo's steps, alternating, and the ratio of their medians.

    python benchmarks/alternate.py OLD NEW              7 runs of each, about five minutes on two quiet cores
    python benchmarks/alternate.py OLD NEW --runs 3

OLD and NEW are checkouts, for example a `git worktree` of an earlier commit; every package below their src is taken from there. Each run
has its own process: 20 steps of the demo after a short cold start, without evaluation. Its figures are the median of time/step from the
third step on, and the CPU seconds of the whole process, which are more reliable on a shared machine. Compare a ratio with the spread of
OLD: the largest of its runs over the smallest.
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

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = (
    "train.num_steps=20", "cold_start.num_steps=40", "evaluation.samples=0", "monitors.console=false", "checkpoints.every_steps=0",
)  # fmt: skip
WARM_UP = 2
"""Steps that are not counted: the first ones compile and allocate."""


def use_checkout(checkout: Path) -> dict[str, str]:
    """The environment in which Python imports the packages of a checkout. Exits if one comes from another place."""
    source = checkout / "src"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(source), str(ROOT / "benchmarks")])}
    names = sorted(file.parent.name for file in source.glob("*/__init__.py"))
    show = "import importlib.util, sys; print(*(importlib.util.find_spec(name).origin for name in sys.argv[1:]), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", show, *names], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    if done.stdout.splitlines() != [str(source / name / "__init__.py") for name in names] or "cohort" not in names:
        raise SystemExit(f"{checkout}: the packages {', '.join(names) or '(none)'} below src come from {done.stdout.strip()}")
    return environment


def time_run(checkout: Path, folder: Path) -> tuple[float, float]:
    """(median seconds of a step, CPU seconds of the run) with the code of one checkout."""
    command = [sys.executable, "-m", "cohort", "train", *SETTINGS, f"runs_folder={folder}", f"name={checkout.name}"]
    environment, before = use_checkout(checkout), count_cpu_seconds()
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
