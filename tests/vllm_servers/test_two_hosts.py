"""Trainers and servers on two hosts: benchmarks/two_hosts_vllm.py, which compares the weights of its runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import namespaces  # noqa: E402

pytestmark = [pytest.mark.vllm, pytest.mark.prove]


@pytest.mark.parametrize("lag", [1, 0])
def test_runs_over_two_hosts_end_with_the_weights_of_one_process_killed_or_not(lag, tmp_path):
    if why := namespaces.explain_no_hosts():
        pytest.skip(why)
    command = [
        sys.executable,
        str(BENCHMARKS / "two_hosts_vllm.py"),
        str(tmp_path / "out"),
        "--only",
        f"lag-{lag}",
        "--steps",
        "4",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("lag-")]
    assert {row[0] for row in rows} >= {
        f"lag-{lag}-{case}" for case in ("alone", "both-none-again", "both-full", "both-none-killed")
    }
    assert len({row[1] for row in rows}) == 1
