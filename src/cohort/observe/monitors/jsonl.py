"""metrics.jsonl and evaluations.jsonl: the source of truth, one strict JSON object per line, safe against a crash.

Every line is flushed and fsynced: a step takes seconds, the fsync milliseconds, and what the file says survives a power
cut. A crash can tear the last line only; readers skip a line that does not parse, and appending starts on a fresh line.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cohort.observe.monitors.base import Monitor


class JsonlMonitor(Monitor):
    """Appends one line per step and per evaluation. Opens the file for each line, so that nothing is held in between."""

    def __init__(self, folder: str | Path) -> None:
        self.metrics = Path(folder) / "metrics.jsonl"
        self.evaluations = Path(folder) / "evaluations.jsonl"

    def on_metrics(self, row: Mapping[str, Any]) -> None:
        append_line(self.metrics, row)

    def on_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        append_line(self.evaluations, evaluation)

    def truncate_after(self, step: int) -> None:
        """Forget what came after a step, so that resuming from it writes no step twice."""
        truncate_after(self.metrics, step)
        truncate_after(self.evaluations, step)


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(make_strict(row), allow_nan=False, ensure_ascii=False)
    with path.open("ab+") as file:
        # After a crash the last line may be torn: end it, so that it spoils itself only.
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                line = "\n" + line
        file.write((line + "\n").encode("utf-8", "backslashreplace"))  # half a surrogate pair becomes JSON's own escape
        file.flush()
        os.fsync(file.fileno())


def make_strict(value: Any) -> Any:
    """Plain JSON: NaN and infinity become null (no JSON parser but Python's reads them), numpy and torch scalars floats."""
    if isinstance(value, Mapping):
        return {str(name): make_strict(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [make_strict(inner) for inner in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if hasattr(value, "item"):
        return make_strict(value.item())
    raise TypeError(f"{type(value).__name__} is not a number or text")


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """All lines that are whole JSON objects; a missing file is no rows."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError:
        return []
    return [row for line in lines if (row := parse_line(line)) is not None]


def parse_line(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:  # also UnicodeDecodeError: a line torn inside a character
        return None
    return row if isinstance(row, dict) else None


def truncate_after(path: str | Path, step: int) -> None:
    """Keep the rows up to `step`, each once and in order, dropping torn and step-less lines.

    Atomic: a crash leaves the old file or the new.
    """
    path = Path(path)
    if not path.exists():
        return
    rows = {line: parse_line(line) for line in path.read_bytes().splitlines()}
    found = [(row["step"], line) for line, row in rows.items() if row is not None and has_step_up_to(row, step)]
    kept = [line for _, line in sorted(found, key=lambda pair: pair[0])]
    temporary = path.with_suffix(".jsonl.tmp")
    with temporary.open("wb") as file:
        file.write(b"".join(line + b"\n" for line in kept))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def has_step_up_to(row: Mapping[str, Any], step: int) -> bool:
    return isinstance(row.get("step"), int) and row["step"] <= step
