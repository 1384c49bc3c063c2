"""The cost of a run's record: CPU seconds and bytes of index.bin, events.jsonl and the token files, on the demo.

    python benchmarks/record.py [--steps 50] [--repeats 1] [--every 25] [--output docs/results/record.json]

The demo trains with and without the record, in turn, each in its own process on one thread. With the record, every part of it is timed
by the CPU clock of the process: the difference of two whole runs only shows that nothing else changed, because runs vary by more than
the cost of the record.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

SETTINGS = "cold_start.num_steps=60 evaluation.samples=0 checkpoints.every_steps=0 monitors.console=false"
MOST_SHARE, MOST_BYTES = 0.01, 2 << 20
"""Of a step's CPU seconds, and of what one step writes."""
TIMED = {
    "index.bin": "cohort.training.stages:append_rows",
    "holding tokens": "cohort.training.trace:TokenTrace.note_update",
    "tokens.parquet": "cohort.training.stages:record_tokens",
    "events.jsonl": "cohort.observe.monitors.jsonl:JsonlMonitor.note_event",
    "findings": "cohort.observe.diagnosis.checks:FindingWatch.add_row",
}
"""Parts of the record, and the functions that are all of their work."""
WITHOUT = ("index.bin", "holding tokens", "tokens.parquet", "events.jsonl")
"""Those that a run without the record does not do. Findings are looked for by the console in any case."""


def find_owner(spec: str) -> tuple[Any, str]:
    import importlib

    module, _, path = spec.partition(":")
    *parents, name = path.split(".")
    owner: Any = importlib.import_module(module)
    for parent in parents:
        owner = getattr(owner, parent)
    return owner, name


def time_function(spec: str, spent: dict[str, float], part: str, does: bool) -> None:
    """Count the CPU seconds of a function; where it does nothing, it is replaced by that."""
    owner, name = find_owner(spec)
    original: Callable[..., Any] = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.process_time()
        try:
            return original(*args, **kwargs) if does else None
        finally:
            spent[part] = spent.get(part, 0.0) + time.process_time() - started

    setattr(owner, name, timed)


def be_child(words: list[str], recorded: bool) -> None:
    """`cohort train WORDS`; the last line says what it took."""
    from cohort.cli import app

    spent: dict[str, float] = {}
    for part, spec in TIMED.items():
        time_function(spec, spent, part, recorded or part not in WITHOUT)
    time_function("cohort.loop:train", spent, "training", True)
    code: Any = 0
    try:
        app(["train", "column_addition", *words])
    except SystemExit as end:
        code = end.code
    print(json.dumps(spent))
    sys.exit(code)


def train(folder: Path, name: str, steps: int, every: int) -> dict[str, float]:
    """CPU seconds of a run, by part, and what it has written."""
    words = [*SETTINGS.split(), f"num_steps={steps}", f"monitors.tokens_every={every}", f"name={name}", f"runs_folder={folder}"]
    child = [sys.executable, __file__, "--child", "recorded" if every else "plain", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(child, env=environment, capture_output=True, text=True, check=True)
    spent: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    run = folder / name
    largest = max((file.stat().st_size for file in (run / "rollouts").glob("*.tokens.parquet")), default=0)
    size = {"index bytes": run / "rollouts" / "index.bin", "events bytes": run / "events.jsonl"}
    return (
        spent | {"largest tokens.parquet": largest} | {key: file.stat().st_size for key, file in size.items() if file.exists()}
    )


def measure(steps: int, repeats: int, every: int) -> dict[str, Any]:
    runs: dict[str, list[dict[str, float]]] = {"with": [], "without": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(repeats):
            runs["with"].append(train(Path(folder), f"with-{number}", steps, every))
            runs["without"].append(train(Path(folder), f"without-{number}", steps, 0))
    spent = {name: median(run.get(name, 0.0) for run in runs["with"]) for name in runs["with"][0]}
    training, record = spent["training"], sum(spent.get(part, 0.0) for part in WITHOUT)
    return {
        "steps": steps,
        "tokens_every": every,
        "seconds a step": round(training / steps, 4),
        "share of the record": round(record / training, 5),
        "share of the findings": round(spent.get("findings", 0.0) / training, 5),
        "milliseconds a step": {part: round(1000 * spent.get(part, 0.0) / steps, 3) for part in TIMED},
        "bytes a step": round(spent["index bytes"] / steps),
        "largest tokens.parquet": spent["largest tokens.parquet"],
        "events bytes": spent["events bytes"],
        "training with": [round(run["training"], 2) for run in runs["with"]],
        "training without": [round(run["training"], 2) for run in runs["without"]],
    }


def main() -> int:
    """1 where the record takes more than it may."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--every", type=int, default=25, help="monitors.tokens_every")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    found = measure(given.steps, given.repeats, given.every)
    text = json.dumps(found, indent=2)
    print(text)
    if given.output:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.write_text(text + "\n", encoding="utf-8")
    return int(
        found["share of the record"] > MOST_SHARE or found["largest tokens.parquet"] + found["bytes a step"] > MOST_BYTES
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        be_child(sys.argv[3:], sys.argv[2] == "recorded")
    else:
        sys.exit(main())
