"""A run in one line: how it ended, how far it came, what it changed, and where it lies. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def describe_result(folder: Path, status: str, summary: Mapping[str, Any]) -> str:
    """`RunResult(finished, 200 steps, pass@1 54.1 % -> 95.2 %, runs/demo)`: what a notebook shows of a result."""
    steps = int(summary.get("steps") or 0)
    words = [status, f"{steps} step{'' if steps == 1 else 's'}", describe_change(summary.get("eval") or {}), str(folder)]
    return f"RunResult({', '.join(word for word in words if word)})"


def describe_change(evaluation: Mapping[str, Any]) -> str:
    """pass@1 before and after, of the first set; "" where nothing was measured."""
    before, after = (((evaluation.get(label) or {}).get("pass@1") or {}).get("value") for label in ("before", "after"))
    if before is None and after is None:
        return ""
    sides = ("not measured" if value is None else f"{100 * value:.1f} %" for value in (before, after))
    return f"pass@1 {' -> '.join(sides)}"
