"""The demo with rollouts of a vLLM server and of the local engine: the same start, seed and prompts.

    python benchmarks/vllm_demo.py OUT [--steps 40] [--problems 512] [--only vllm] [KEY=VALUE ...]

One cold start makes the starting model of all runs. Then the demo trains with the local engine, with a server started by `cohort serve`,
and with the server sampling a step ahead (ahead.lag = 1). Finally one `cohort evaluate` measures the start and all runs with the local
engine: pass@1 with intervals, and each run against the one with the local engine, problem by problem. Finished runs in OUT are not
trained again. Needs the environment of `make vllm`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "vllm_servers"))

import serving

RECIPE = "column_addition"
RUNS = {
    "local": ["sampling.engine=local"],
    "vllm": ["sampling.engine=vllm"],
    "vllm-lag-1": ["sampling.engine=vllm", "ahead.lag=1"],
}
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}


def train(run: Path, words: Sequence[str]) -> None:
    """A run in this folder, unless it is there already."""
    if not (run / "model").is_dir():
        command = [sys.executable, "-m", "cohort", "train", RECIPE, *words, f"name={run.name}", f"runs_folder={run.parent}"]
        with (run.parent / f"{run.name}.txt").open("wb") as log:
            subprocess.run([*command, "evaluation.samples=0"], check=True, env=ONE_THREAD, stdout=log, stderr=log)


def describe(run: Path) -> str:
    """What the run looked like from inside: rewards at both ends, the two engines' distance, seconds."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    tenth = max(1, len(rows) // 10)
    rewards = [mean(row["reward/mean"] for row in part) for part in (rows[:tenth], rows[-tenth:])]
    means = {name: mean(row.get(name, 0.0) for row in rows) for name in ("rollout/mismatch_mean", "time/step", "time/wait")}
    return (
        f"{run.name:11} reward {rewards[0]:.3f} -> {rewards[1]:.3f} over {len(rows)} steps, mismatch mean {means['rollout/mismatch_mean']:.1e} max "
        f"{max(row.get('rollout/mismatch_max', 0.0) for row in rows):.1e}, {means['time/step']:.2f} s a step, of which {means['time/wait']:.2f} waiting, push "
        f"{mean(row.get('servers/push_seconds', 0.0) for row in rows):.2f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for the runs")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--problems", type=int, default=512, help="held-out ones, 8 samples of each")
    parser.add_argument("--only", choices=sorted(RUNS), help="train this one, and evaluate nothing")
    parser.add_argument("words", nargs="*", help="recipe settings, KEY=VALUE")
    options = parser.parse_args()
    out = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    train(out / "cold", ["num_steps=0", *options.words])
    shared = [f"model.source={out / 'cold' / 'model'}", "cold_start.num_steps=0", f"num_steps={options.steps}", *options.words]
    with serving.serve_many(out / "server", [RECIPE, *shared, f"runs_folder={out}"]) as [server]:
        for name, words in {options.only: RUNS[options.only]}.items() if options.only else RUNS.items():
            servers = [f"sampling.servers={server.url}"] if "sampling.engine=vllm" in words else []
            train(out / name, [*shared, *words, *servers])
            print(describe(out / name), flush=True)
    if options.only:
        return
    models = [str(out / name / "model") for name in (*RUNS, "cold")]
    settings = [f"evaluation.max_problems={options.problems}", "evaluation.samples=8"]
    chosen = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "cohort", "evaluate", *models, "--recipe", RECIPE, *chosen]
    subprocess.run([*command, "--output", str(out / "evaluation.json")], check=True, env=ONE_THREAD)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the server is ended then too
    main()
