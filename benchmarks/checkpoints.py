"""Share of a run for which saving stops training, with a state of real size: 132M float32 parameters with Adam moments, 1.6 GB.

    python benchmarks/checkpoints.py                        50 steps, saved every 25: about four minutes on two quiet cores, 6 GiB
    python benchmarks/checkpoints.py --other CHECKOUT       the same with the code of another checkout first
    python benchmarks/checkpoints.py --layers 4             38M parameters, 2 GiB

Random weights, 4 completions a step, so that a step takes seconds, as with a GPU and a real batch. Prints one JSON object: seconds of all
steps, seconds for which saving stopped training (copies and waits, the last save included), their share, seconds of writing, and the
median step during a write and otherwise.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from alternate import ROOT, use_checkout

SETTINGS = (
    "prompts_per_step=2", "group_size=2", "cold_start.num_steps=0", "evaluation.samples=0", "monitors.console=false", "kl_coef=0",
    "model.scratch.hidden_size=768", "model.scratch.intermediate_size=3072",
    "model.scratch.num_heads=12", "model.scratch.num_kv_heads=12", "checkpoints.best=false",
)  # fmt: skip
TARGET = 0.02


def measure_run(checkout: Path, layers: int, steps: int, every: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        words = [*SETTINGS, f"model.scratch.num_layers={layers}", f"num_steps={steps}", f"checkpoints.every_steps={every}"]
        words += [f"runs_folder={folder}", "name=run"]
        command = [sys.executable, "-m", "cohort", "train", "column_addition", *words]
        subprocess.run(command, env=use_checkout(checkout), cwd=folder, stdout=subprocess.DEVNULL, check=True)
        run = Path(folder) / "run"
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        return describe_saving(rows, json.loads((run / "summary.json").read_text(encoding="utf-8")), every)


def describe_saving(rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], every: int) -> dict[str, Any]:
    """Seconds and shares of one run."""
    saving = summary["saving"]
    stopped = saving.get("stopped_seconds", saving.get("seconds"))  # before writing had a thread, every second stopped training
    in_rows = sum(row.get("time/checkpoint", 0.0) for row in rows)
    training = sum(row["time/step"] for row in rows) - in_rows
    own = [row["time/step"] - row.get("time/checkpoint", 0.0) for row in rows]
    after = {place for row in rows for place in [row["step"]] if place > 1 and (place - 1) % every == 0}
    return {
        "parameters": summary["parameters"],
        "saves": saving["count"],
        "bytes": saving["bytes"],
        "training_seconds": round(training, 2),
        "stopped_seconds": stopped,
        "stopped_share": round(stopped / (training + stopped), 4),
        "written_seconds": saving.get("written_seconds"),
        "median_step": round(median(own), 3),
        "step_after_a_save": [round(seconds, 3) for row, seconds in zip(rows, own, strict=True) if row["step"] in after],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, help="another checkout, such as a worktree of an earlier commit")
    parser.add_argument("--layers", type=int, default=14)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--every", type=int, default=25)
    options = parser.parse_args()
    checkouts = ({"other": options.other.resolve()} if options.other else {}) | {"this": ROOT}
    found = {name: measure_run(checkout, options.layers, options.steps, options.every) for name, checkout in checkouts.items()}
    print(json.dumps(found, indent=2))
    share = found["this"]["stopped_share"]
    print(f"saving stops training for {share:.2%} (target: at most {TARGET:.0%})")
    return int(share > TARGET)


if __name__ == "__main__":
    sys.exit(main())
