"""Reads a run folder in any state: every file may be missing, incomplete or malformed."""

from __future__ import annotations

import contextlib
import json
import socket
import time
import tomllib
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from cohort.algorithms.named import Own
from cohort.base.files import is_held
from cohort.errors import RunError
from cohort.evaluation.estimators import PairedDifference
from cohort.evaluation.evaluate import Evaluation, compare
from cohort.observe.metrics import LARGEST
from cohort.observe.monitors.jsonl import read_rows
from cohort.observe.outcome import read_change
from cohort.observe.report.charts import Marker
from cohort.observe.rollouts import read_rollouts
from cohort.observe.run_folder import RunFolder, read_known_functions
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.describe import describe_algorithm, describe_own

QUIET_S = 300.0
"""A run without a lock counts as stopped after this many seconds without output, or after ten steps if those take longer."""


class RunData:
    """The data of a run for reports, model cards and comparisons: plain JSON values, checked where they are used."""

    def __init__(self, root: Path) -> None:
        self.folder = folder = RunFolder(root)
        self.recipe_text = self.read_text(folder.recipe_file)
        self.recipe = parse_recipe(self.recipe_text)
        self.own, self.own_problem = self.read_own_functions()
        """The facts about user-defined functions in algorithm.json, and why it could not be read."""
        self.rows, self.evaluations = (
            [row for row in self.read_rows(file) if as_number(row.get("step")) is not None]
            for file in (folder.metrics_file, folder.evaluations_file)
        )
        self.ranks = self.read_rows(folder.ranks_file)
        """The records of the ranks, step by step; [] for a run of one process."""
        self.events = self.read_rows(folder.events_file)
        """Messages, stages and findings, with their times and steps."""
        self.summary = parse_object(self.read_text(folder.summary_file))
        self.samples_before, self.samples_after = (
            self.read_rows(folder.samples / f"{side}.jsonl") for side in ("before", "after")
        )

    def read_rows(self, file: Path) -> list[dict[str, Any]]:
        """The JSON objects of a file, one per line."""
        return read_rows(file)

    def read_text(self, file: Path) -> str:
        try:
            return file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def read_completions(self, steps: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
        """Every completion of these steps, in order; steps with an unreadable file are skipped."""
        rows: list[dict[str, Any]] = []
        for step in steps:
            file = self.find_file(self.folder.rollouts_file(step))
            with contextlib.suppress(RunError):
                rows += read_rollouts(file, columns) if file else []
        return rows

    def find_file(self, file: Path) -> Path | None:
        """The file to read in place of this one; None if it must not be read."""
        return file

    def read_own_functions(self) -> tuple[Own, str]:
        return read_known_functions(self.folder.root, self.recipe)

    served = False
    """Whether the dashboard shows this run."""

    @property
    def name(self) -> str:
        return self.folder.root.resolve().name

    @property
    def place(self) -> str:
        """The folder with its parent, as in `runs/my-run`; no absolute path."""
        return f"{self.folder.root.resolve().parent.name}/{self.name}"

    @property
    def last_written(self) -> str:
        """When the run last wrote results; not when the report was written."""
        folder = self.folder
        files = (folder.metrics_file, folder.evaluations_file, folder.summary_file, folder.recipe_file)
        times = [file.stat().st_mtime for file in files if file.exists()]
        return datetime.fromtimestamp(max(times)).strftime("%d %B %Y, %H:%M").lstrip("0") if times else ""

    @property
    def status(self) -> str:
        known = ("finished", "interrupted", "running", "failed")
        status = self.summary.get("status")
        if status == "running" and not self.is_alive:
            return "unfinished"
        return status if status in known else "unfinished"

    @property
    def is_alive(self) -> bool:
        """Whether a process holds the run's lock: a killed run cannot say that it ended.

        The lock of a process on another host is not seen here; such a run is alive while it writes.
        """
        lock = self.folder.root / "run.lock"
        if is_held(lock) or self.read_text(lock).endswith(f" on {socket.gethostname()}"):
            return is_held(lock)
        return self.quiet_s < max(QUIET_S, 10 * median(self.find_last_values("time/step") or [0.0]))

    @property
    def quiet_s(self) -> float:
        """Seconds since the run last wrote to one of its files."""
        folder, times = self.folder, []
        for file in (folder.metrics_file, folder.evaluations_file, folder.events_file, folder.recipe_file):
            with contextlib.suppress(OSError):
                times.append(file.stat().st_mtime)
        return max(0.0, time.time() - max(times)) if times else float("inf")

    @property
    def steps(self) -> int:
        last = as_number(self.rows[-1].get("step")) if self.rows else None
        counted = as_number(self.summary.get("steps"))
        return int((last or counted if self.status == "running" else counted or last) or 0)

    @property
    def seconds(self) -> float | None:
        """From the summary; without one, the sum of the step times."""
        measured = as_number(self.summary.get("seconds"))
        times = [t for _, t in self.find_series("time/step")]
        return measured if measured is not None else (sum(times) if times else None)

    def find_setting(self, section: str, key: str) -> Any:
        """A setting of the recipe; None if the recipe does not have it."""
        return as_dict(self.recipe.get(section)).get(key)

    def describe_algorithm(self) -> list[str]:
        """A sentence on the algorithm and one per user-defined function in it; [] for a recipe that is not valid."""
        try:
            algorithm = AlgorithmConfig.model_validate(as_dict(self.recipe.get("algorithm"))).resolved(self.own)
        except ValueError:
            return []
        return [describe_algorithm(algorithm), *map(describe_own, self.own.values())]

    @cached_property
    def metric_names(self) -> set[str]:
        """The metrics that any row has."""
        return set().union(*self.rows)

    @cached_property
    def step_numbers(self) -> list[float]:
        """The step of every row."""
        return [float(row["step"]) for row in self.rows]

    def find_series(self, name: str) -> list[tuple[float, float]]:
        """(step, value) for every row where the metric is a finite number."""
        if name not in self.metric_names:
            return []
        values: list[Any] = [row.get(name) for row in self.rows]
        if not {float}.issuperset(map(type, values)):  # rare; the common case must be fast for ten thousand rows
            values = [as_number(value) for value in values]
        return [pair for pair in zip(self.step_numbers, values, strict=True) if pair[1] is not None and abs(pair[1]) <= LARGEST]

    def find_last_values(self, name: str, most: int = 10) -> list[float]:
        """The values of the metric in the last steps that have it."""
        if name not in self.metric_names:
            return []
        values = (as_number(row.get(name)) for row in reversed(self.rows))
        return list(islice((value for value in values if value is not None), most))[::-1]

    def find_numbers(self, label: str, step: int | None = None) -> dict[str, dict[str, Any]]:
        """Set -> numbers of the newest evaluation with this label, or at this step; from summary.json if there is none."""
        for evaluation in reversed(self.evaluations):
            if evaluation.get("label") == label if step is None else evaluation.get("step") == step:
                return {str(name): as_dict(values) for name, values in as_dict(evaluation.get("sets")).items()}
        if step is not None:
            return {}
        entry = as_dict(self.summary.get("eval"))
        sets = {str(name): as_dict(as_dict(sides).get(label)) for name, sides in as_dict(entry.get("sets")).items()}
        sets = {name: values for name, values in sets.items() if values}
        first = as_dict(entry.get(label))
        return sets or ({"held-out problems": first} if first else {})

    @cached_property
    def markers(self) -> tuple[Marker, ...]:
        """The steps at which findings first appeared, each finding once."""
        found: dict[tuple[float, str], Marker] = {}
        for event in self.events:
            step, text = as_number(event.get("step")), str(event.get("what") or event.get("text") or event.get("name") or "")
            if event.get("kind") == "finding" and step is not None and text:
                level = str(event.get("level"))
                found[step, text] = Marker(step, level if level in ("alarm", "warning") else "info", text)
        return tuple(sorted(found.values(), key=lambda marker: marker.step))

    def find_change(self, name: str, what: str = "pass@1") -> PairedDifference | None:
        """The paired change of one number on one set; None if no problem has verdicts on both sides."""
        return self.changes.get(name, {}).get(what)

    @cached_property
    def changes(self) -> Mapping[str, Mapping[str, PairedDifference]]:
        """Set -> number -> its paired change, from summary.json, or else from the evaluations."""
        stored = as_dict(as_dict(self.summary.get("eval")).get("change"))
        if stored:
            sets = {name: {what: read_change(one) for what, one in as_dict(found).items()} for name, found in stored.items()}
            return {name: {what: one for what, one in found.items() if one is not None} for name, found in sets.items()}
        before, after = self.find_evaluation("before"), self.find_evaluation("after")
        return compare(before, after) if before and after else {}

    def find_evaluation(self, label: str) -> Evaluation | None:
        """The newest evaluation with this label, problem by problem; None if it is missing or malformed."""
        try:
            return Evaluation.from_json(next(row for row in reversed(self.evaluations) if row.get("label") == label))
        except (StopIteration, KeyError, TypeError, ValueError, AttributeError):
            return None


def parse_recipe(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return {}


def parse_object(text: str) -> dict[str, Any]:
    """The JSON object in a text; {} if it is something else."""
    try:
        return as_dict(json.loads(text))
    except (ValueError, RecursionError):
        return {}


def as_dict(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def as_number(value: Any) -> float | None:
    """The value as a float if it is a number up to LARGEST, otherwise None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= LARGEST else None
