"""metrics.jsonl, evaluations.jsonl, events.jsonl and, with several ranks, ranks.jsonl: one strict JSON object per line.

Every line is flushed and fsynced: a step takes seconds, the fsync milliseconds, and the line survives a power cut. A crash can truncate
only the last line; readers skip lines that do not parse, and the next append starts a new line.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cohort.base.files import name_file
from cohort.observe.monitors.base import Monitor

PROGRESS_S = 5.0
"""Seconds between two lines about the progress of a stage or of scoring."""


class JsonlMonitor(Monitor):
    """Appends one line per step, evaluation and event. Opens the file for each line, so that no file stays open.

    An event has `time` (seconds since 1970), `step` and `kind`: "message" (text), "stage" (the stage that begins, with total and done; or
    the status at the end), "progress" (stage, done, total; for scoring also part) or "finding" (as monitors receive it). `step` is the
    current step; for a finding the step whose row shows it, for a stage the number of finished steps; null before training.
    """

    def __init__(self, folder: str | Path, clock: Callable[[], float] = time.time) -> None:
        self.metrics = Path(folder) / "metrics.jsonl"
        self.evaluations = Path(folder) / "evaluations.jsonl"
        self.ranks = Path(folder) / "ranks.jsonl"
        self.events = Path(folder) / "events.jsonl"
        self.rollouts = Path(folder) / "rollouts"
        self.clock = clock
        self.stage, self.total = "", 0
        self.finished: int | None = None
        """Finished steps; None before the training."""
        self.last_progress = float("-inf")
        self.scoring: dict[str, float] = {}
        """Reward part that is scoring -> its start time."""

    def on_metrics(self, row: Mapping[str, Any]) -> None:
        append_line(self.metrics, row)
        self.finished = row["step"]

    def on_ranks(self, step: int, ranks: Sequence[Mapping[str, Any]]) -> None:
        append_line(self.ranks, {"step": step, "ranks": ranks})

    def on_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        append_line(self.evaluations, evaluation)

    # -- events ---------------------------------------------------------------------------------------------------------

    def on_stage(self, stage: str, total: int = 0, done: int = 0) -> None:
        self.stage, self.total, self.last_progress = stage, total, float("-inf")
        if stage == "training":
            self.finished = done
        self.note_event("stage", self.finished, stage=stage, total=total, done=done)

    def on_message(self, text: str) -> None:
        self.note_event("message", self.step, text=text)

    def on_finding(self, step: int, finding: Mapping[str, Any]) -> None:
        if not finding["again"]:
            self.note_event("finding", step, **{name: finding[name] for name in finding if name not in ("text", "again")})

    def on_progress(self, done: int, values: Mapping[str, float]) -> None:
        self.note_progress(done == self.total, done=done, total=self.total, values=values)

    def on_scoring(self, part: str, done: int, total: int) -> None:
        """Written only if scoring is slow."""
        if done == total:
            self.scoring.pop(part, None)
        elif self.clock() - self.scoring.setdefault(part, self.clock()) >= PROGRESS_S:
            self.note_progress(False, part=part, done=done, total=total)

    def on_finish(self, summary: Mapping[str, Any]) -> None:
        self.note_event("stage", self.finished, stage=summary.get("status", "finished"))

    @property
    def step(self) -> int | None:
        """The current step."""
        return self.finished + 1 if self.finished is not None and self.stage == "training" else self.finished

    def note_progress(self, last: bool, **facts: Any) -> None:
        now = self.clock()
        if last or now - self.last_progress >= PROGRESS_S:
            self.last_progress = now
            self.note_event("progress", self.step, stage=self.stage, **facts)

    def note_event(self, kind: str, step: int | None, **facts: Any) -> None:
        append_line(self.events, {"time": round(self.clock(), 3), "step": step, "kind": kind, **facts})

    # -- resuming -------------------------------------------------------------------------------------------------------

    def truncate_after(self, step: int) -> None:
        """Remove the records of later steps, so that resuming from this step writes none twice."""
        from cohort.observe.rollouts import list_token_steps, truncate_index

        for file in (self.metrics, self.evaluations, self.ranks):
            truncate_after(file, step)
        if self.events.exists():  # events without a step stay
            lines = [(line, parse_line(line)) for line in self.events.read_bytes().splitlines()]
            replace_lines(
                self.events, [line for line, row in lines if row and (row.get("step") is None or has_step_up_to(row, step))]
            )
        truncate_index(self.rollouts / "index.bin", step)
        for late in list_token_steps(self.rollouts):
            if late > step:  # after an edit of the recipe, other findings may be new at these steps
                (self.rollouts / f"step-{late:06d}.tokens.parquet").unlink()


def append_line(path: Path, row: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(make_strict(row), allow_nan=False, ensure_ascii=False)
    with name_file(path), path.open("ab+") as file:
        # After a crash the last line may be incomplete: end it, so that only that line is lost.
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                line = "\n" + line
        file.write((line + "\n").encode("utf-8", "backslashreplace"))  # a lone surrogate becomes a JSON escape
        file.flush()
        os.fsync(file.fileno())


def make_strict(value: Any) -> Any:
    """The value as strict JSON: NaN and infinity become null, since only Python's parser reads them; numpy and torch scalars, floats."""
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
    """All lines that are complete JSON objects; [] for a missing file."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError:
        return []
    return [row for line in lines if (row := parse_line(line)) is not None]


def parse_line(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):  # also UnicodeDecodeError, for a line cut inside a character
        return None
    return row if isinstance(row, dict) else None


def truncate_after(path: str | Path, step: int) -> None:
    """Keep only the rows up to `step`, each once and in order, atomically; incomplete lines and lines without a step are dropped."""
    path = Path(path)
    if not path.exists():
        return
    rows = {line: parse_line(line) for line in path.read_bytes().splitlines()}
    found = [(row["step"], line) for line, row in rows.items() if row is not None and has_step_up_to(row, step)]
    replace_lines(path, [line for _, line in sorted(found, key=lambda pair: pair[0])])


def replace_lines(path: Path, kept: Sequence[bytes]) -> None:
    temporary = path.with_suffix(".jsonl.tmp")
    with temporary.open("wb") as file:
        file.write(b"".join(line + b"\n" for line in kept))
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def has_step_up_to(row: Mapping[str, Any], step: int) -> bool:
    return isinstance(row.get("step"), int) and row["step"] <= step
