"""CPU seconds of a training process and its children, step by step. On a shared machine the wall clock would also measure other users.

As a monitor of a run (`monitors.also = ["cpu_clock:CpuClock"]`, with this folder on PYTHONPATH) it writes clock.jsonl into the run folder. The other
trainer of the comparison calls `count_tree_seconds` in the same places. Reads /proc, so it needs Linux.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")


def count_tree_seconds(root: int | None = None) -> float:
    """User and system seconds of a process, of its living descendants, and of the ended ones that were waited for."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            parents[int(folder.name)] = int(fields[1])
            spent[int(folder.name)] = sum(map(int, fields[11:15])) / TICKS
    root = root or os.getpid()
    return sum(seconds for process, seconds in spent.items() if is_below(process, root, parents))


def is_below(process: int, root: int, parents: Mapping[int, int]) -> bool:
    while process in parents:
        if process == root:
            return True
        process = parents[process]
    return False


class CpuClock:
    """A line for each step: its number, and the CPU and wall clocks when it was done."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "clock.jsonl"

    @classmethod
    def for_run(cls, run: Any) -> CpuClock:
        return cls(run.folder)

    def on_metrics(self, row: Mapping[str, Any]) -> None:
        entry = {"step": row["step"], "cpu": count_tree_seconds(), "wall": time.monotonic(), "looked": "time/evaluate" in row}
        with self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(entry) + "\n")
