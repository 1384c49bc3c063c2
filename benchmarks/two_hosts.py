"""Two hosts on one machine: network namespaces joined by a link of stated rate and delay, one rank on each.

    sudo python benchmarks/two_hosts.py OUT [--steps 20] [--gbit 1] [--delay-ms 5] [KEY=VALUE ...]

Trains the same recipe on one rank and on two hosts, and prints hashes of the weights and the median seconds of a step. Both runs have one thread a rank. Needs root and `ip` (namespaces.py).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import subprocess
import sys
from pathlib import Path

from namespaces import Host, make_hosts, write_launches

from cohort.observe.run_folder import RunFolder

WORDS = [
    "column_addition",
    "cold_start.num_steps=40",
    "cold_start.until_success=1.0",
    "evaluation.samples=0",
    "monitors.console=false",
    "train.micro_batch_tokens=1024",
    "prompts_per_step=32",
    "group_size=8",
    "checkpoints.every_steps=0",
    "parallel.limit_s=60",
]


def train_on_both(words: list[str], hosts: list[Host]) -> None:
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    children = [subprocess.Popen(command, env=env) for command in write_launches(hosts, 29511, "train", *words)]
    codes = [child.wait() for child in children]
    if any(codes):
        raise SystemExit("a host failed; see above")


def hash_weights(run_folder: Path) -> str:
    return hashlib.sha256((run_folder / "model" / "model.safetensors").read_bytes()).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for the two run folders, which must not exist yet")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--gbit", type=float, default=1.0, help="rate of the link")
    parser.add_argument("--delay-ms", type=float, default=5.0, help="one way")
    parser.add_argument("words", nargs="*", help="recipe settings, KEY=VALUE")
    options = parser.parse_args()
    words = [*WORDS, f"num_steps={options.steps}", f"runs_folder={options.out}", *options.words]
    alone, both = options.out / "alone", options.out / "both"
    subprocess.run(
        [sys.executable, "-m", "cohort", "train", *words, "name=alone"], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    with make_hosts(options.gbit * 1e9, options.delay_ms * 1e-3) as hosts:
        train_on_both([*words, "name=both"], hosts)
    print(f"weights: one rank {hash_weights(alone)}, two hosts {hash_weights(both)}")
    for folder in (alone, both):
        seconds = [row["time/step"] for row in RunFolder(folder).metrics()[1:]]
        print(f"{folder.name}: {statistics.median(seconds):.3f} s a step")


if __name__ == "__main__":
    main()
