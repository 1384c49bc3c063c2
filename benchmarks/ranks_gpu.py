"""Several trainers on one GPU: the cost of a world of one rank and of exact sums, and whether the bits are the same.

    python benchmarks/ranks_gpu.py [speed|bits] [--steps 8] [--turns 3] [--layers 24] [--width 896]

The demo's task on a scratch model of 0.5B's shape, plain and as rank 0 of 1 under the environment that torchrun makes, in turn. Each
run has its own process. Seconds are medians over the steps after the second, of all turns; the spread is their quartiles. Bits are
compared by the hash of the exported weights, with train.deterministic. Two ranks on one GPU add their gradients through the host
(gloo): their bits count, their seconds do not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

STAGES = ("step", "rollout", "update", "optimizer")


def make_words(options: argparse.Namespace, name: str, folder: Path, *more: str) -> list[str]:
    width = options.width
    return [
        "column_addition", f"runs_folder={folder}", f"name={name}", f"num_steps={options.steps}", "cold_start.num_steps=0",
        "evaluation.samples=0", "monitors.console=false", "monitors.rollouts_every=0", "checkpoints.every_steps=0",
        f"model.scratch.hidden_size={width}", f"model.scratch.intermediate_size={width * 5}", f"model.scratch.num_layers={options.layers}",
        "model.scratch.num_heads=14", "model.scratch.num_kv_heads=2", "prompts_per_step=64", "group_size=8",
        "train.micro_batch_tokens=4096", "sampling.max_completion_tokens=48", "algorithm.zero_variance=keep", "algorithm.kl_coef=0.02",
        "sampling.slots=512", *more,
    ]  # fmt: skip


def run_ranks(words: list[str], ranks: int) -> None:
    """One process without torchrun's environment (0 ranks), or `ranks` processes with it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "cohort", "train", *words]
    children = []
    for rank in range(max(1, ranks)):
        told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        env = os.environ | ({name: str(value) for name, value in told.items()} if ranks else {})
        children.append(subprocess.Popen(command, env=env))
    if codes := [code for child in children if (code := child.wait())]:
        raise SystemExit(f"{' '.join(command)}: exit code {codes[0]}")


def read_rows(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()][2:]


def hash_weights(run: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted((run / "model").glob("*.safetensors")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def measure_speed(options: argparse.Namespace, folder: Path) -> None:
    cases = {
        "plain, fast sums": (0, "parallel.sums=fast"),
        "1 rank, fast sums": (1, "parallel.sums=fast"),
        "plain, exact sums": (0, "parallel.sums=exact"),
    }
    rows: dict[str, list[dict[str, float]]] = {case: [] for case in cases}
    for turn in range(options.turns):
        for number, (case, (ranks, sums)) in enumerate(cases.items()):
            name = f"case-{number}-{turn}"
            run_ranks(make_words(options, name, folder, sums), ranks)
            rows[case] += read_rows(folder / name)
            middle = statistics.median(row["time/step"] for row in read_rows(folder / name))
            print(f"turn {turn}: {case}: {middle:.4f} s a step", flush=True)
    print("| case | " + " | ".join(f"{stage}, s" for stage in STAGES) + " | peak, GiB |")
    print("|---" * (len(STAGES) + 2) + "|")
    for case, found in rows.items():
        cells = []
        for stage in STAGES:
            low, middle, high = statistics.quantiles([row[f"time/{stage}"] for row in found], n=4)
            cells.append(f"{middle:.4f} [{low:.4f}, {high:.4f}]")
        print(f"| {case} | {' | '.join(cells)} | {max(row['perf/peak_memory_gib'] for row in found):.2f} |", flush=True)


def compare_bits(options: argparse.Namespace, folder: Path) -> None:
    for ranks in (0, 1, 2):
        name = f"bits-{ranks}"
        run_ranks(make_words(options, name, folder, "train.deterministic=true", "num_steps=3"), ranks)
        print(f"weights after 3 steps, deterministic, {ranks or 'no'} ranks: {hash_weights(folder / name)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("speed", "bits"), help="only one of the two")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=896)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if options.what != "bits":
            measure_speed(options, Path(scratch))
        if options.what != "speed":
            compare_bits(options, Path(scratch))


if __name__ == "__main__":
    main()
