"""The cost of a step on the host: milliseconds of every stage for 1,024 short completions and a very small model.

    python benchmarks/host_share.py                              both rewards, 3 runs each; about four minutes on two cores
    python benchmarks/host_share.py --other CHECKOUT --runs 5    the same with the code of another checkout, by turns

64 prompts x 16 completions of about 26 tokens on one CPU thread with a model of one layer, so that host work dominates. Each run has its
own process, with the demo's reward (`math_answer`) or a plain Python function; both are called in workers. Prints one JSON object: for
every stage the median over runs of the median over steps, in milliseconds of wall-clock time and of the trainer's CPU time, which is more
reliable on a shared machine but leaves out the workers. `host` is reward, prepare, pack and observe together; `spread` its smallest and
largest run; `mean_step` shows what medians hide, such as garbage collection.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from alternate import ROOT, use_checkout

SETTINGS = (
    "prompts_per_step=64", "group_size=16", "cold_start.num_steps=60", "evaluation.samples=0", "checkpoints.every_steps=0",
    "monitors.console=false", "model.scratch.hidden_size=32", "model.scratch.intermediate_size=48", "model.scratch.num_layers=1",
    "model.scratch.num_heads=2", "model.scratch.num_kv_heads=1",
)  # fmt: skip
REWARDS = {"math_answer": (), "plain": ('rewards=[{function="host_share:judge"}]',)}
HOST = ("reward", "prepare", "pack", "observe")
WARM_UP = 2
"""Steps that are not counted: the first ones compile and allocate."""


def judge(completions: Sequence[str], answer: Sequence[str], **columns: Any) -> list[float]:
    """The plain reward."""
    return [float(completion.strip().endswith(f">{right}")) for completion, right in zip(completions, answer, strict=True)]


def be_child(words: list[str]) -> None:
    """`cohort train WORDS`, with wall-clock and process seconds of each stage; the last line prints them step by step."""
    from cohort.base.stopwatch import Stopwatch
    from cohort.cli import app

    laps: dict[str, float] = {}
    steps: list[dict[str, float]] = []
    time_lap, take_laps, last = Stopwatch.lap, Stopwatch.take, [time.process_time()]

    def lap(self: Stopwatch, stage: str, tokens: int = 0) -> None:
        time_lap(self, stage, tokens)
        now = time.process_time()
        laps[stage] = laps.get(stage, 0.0) + now - last[0]
        last[0] = now

    def take(self: Stopwatch) -> Any:
        if "update" in self.laps.seconds:  # a whole step is taken, and not what came after the row before
            steps.append(dict(laps))
            laps.clear()
        return take_laps(self)

    Stopwatch.lap, Stopwatch.take = lap, take  # type: ignore[method-assign]
    code: Any = 0
    try:
        app(["train", "column_addition", *words])
    except SystemExit as end:
        code = end.code
    print(json.dumps(steps))
    sys.exit(code)


def run_case(checkout: Path, reward: str, steps: int) -> dict[str, dict[str, float]]:
    """Median milliseconds of every stage, by the clock of the wall and by that of the CPU, with the code of one checkout."""
    with tempfile.TemporaryDirectory() as folder:
        words = [*SETTINGS, *REWARDS[reward], f"num_steps={steps + WARM_UP}", f"runs_folder={folder}", "name=run"]
        environment = use_checkout(checkout) | {"OMP_NUM_THREADS": "1"}
        child = [sys.executable, __file__, "--child", *words]
        done = subprocess.run(child, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
        written = (Path(folder) / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in written][WARM_UP:]
    wall = [{name.removeprefix("time/"): row[name] for name in row if name.startswith("time/")} for row in rows]
    cpu = [one | {"step": sum(one.values())} for one in json.loads(done.stdout.splitlines()[-1])[WARM_UP:]]
    found = {clock: find_medians(of_steps) for clock, of_steps in {"wall": wall, "cpu": cpu}.items()}
    completions = {"tokens": median(row["rollout/length_mean"] for row in rows)}
    return {**found, "completion": completions, "share": {"host": median(row["perf/host_share"] for row in rows)}}


def find_medians(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """Of the stages that every step went through, in milliseconds."""
    stages = {name: [1e3 * step[name] for step in steps] for name in steps[0] if all(name in step for step in steps)}
    found = {name: median(values) for name, values in stages.items()}
    return found | {
        "host": median(sum(1e3 * step[name] for name in HOST) for step in steps),
        "mean_step": fmean(stages["step"]),
    }


def summarise(runs: Sequence[dict[str, dict[str, float]]]) -> dict[str, Any]:
    said: dict[str, Any] = {
        area: {name: round(median(run[area][name] for run in runs), 3) for name in values} for area, values in runs[0].items()
    }
    for clock in ("wall", "cpu"):
        hosts = [run[clock]["host"] for run in runs]
        said[clock]["spread"] = [round(min(hosts), 1), round(max(hosts), 1)]
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, help="another checkout, such as a worktree of an earlier commit")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--reward", choices=REWARDS, help="only this one")
    given = parser.parse_args()
    checkouts = ({"other": given.other.resolve()} if given.other else {}) | {"this": ROOT}
    rewards = [given.reward] if given.reward else list(REWARDS)
    runs: dict[tuple[str, str], list[Any]] = {(reward, name): [] for reward in rewards for name in checkouts}
    for _ in range(given.runs):
        for reward, name in runs:
            runs[reward, name].append(run_case(checkouts[name], reward, given.steps))
    figures = {reward: {name: summarise(runs[reward, name]) for name in checkouts} for reward in rewards}
    print(json.dumps({"steps": given.steps, "runs": given.runs, "milliseconds": figures}, indent=2))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        be_child(sys.argv[2:])
    else:
        main()
