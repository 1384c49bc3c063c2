"""Reads a run folder, whatever state it is in: every file may be missing, torn or of an unexpected shape."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from cohort.errors import RecipeError
from cohort.evaluation.estimators import PairedDifference
from cohort.evaluation.evaluate import Evaluation, compare
from cohort.observe.changes import read_change
from cohort.observe.monitors.jsonl import read_rows
from cohort.observe.run_folder import RunFolder, read_known_functions
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.versions import bring_up_to_date
from cohort.recipe.words import describe_algorithm, describe_own


class RunData:
    """What pages, cards and comparisons read of a run. Plain JSON values, checked where they are used."""

    def __init__(self, root: Path) -> None:
        self.folder = folder = RunFolder(root)
        self.recipe_text = read_text(folder.recipe_file)
        self.recipe = parse_recipe(self.recipe_text)
        self.own, self.own_problem = read_known_functions(root, self.recipe)
        """What algorithm.json says of the user's functions, and why it could not be used."""
        self.rows, self.evaluations = (
            [row for row in rows if as_number(row.get("step")) is not None] for rows in (folder.metrics(), folder.evaluations())
        )
        self.summary = folder.read_summary()
        self.samples_before, self.samples_after = (read_rows(folder.samples / f"{side}.jsonl") for side in ("before", "after"))

    @property
    def name(self) -> str:
        return self.folder.root.resolve().name

    @property
    def place(self) -> str:
        """The folder as it is typed where the run was made; no path of this machine."""
        return f"{self.folder.root.resolve().parent.name}/{self.name}"

    @property
    def last_written(self) -> str:
        """When the run last wrote a number. The report's own time of writing would say nothing about the run."""
        folder = self.folder
        files = (folder.metrics_file, folder.evaluations_file, folder.summary_file, folder.recipe_file)
        times = [file.stat().st_mtime for file in files if file.exists()]
        return datetime.fromtimestamp(max(times)).strftime("%d %B %Y, %H:%M").lstrip("0") if times else ""

    @property
    def status(self) -> str:
        known = ("finished", "interrupted", "running", "failed")
        status = self.summary.get("status")
        return status if status in known else "unfinished"

    @property
    def steps(self) -> int:
        last = as_number(self.rows[-1].get("step")) if self.rows else None
        return int(as_number(self.summary.get("steps")) or last or 0)

    @property
    def seconds(self) -> float | None:
        """From the summary; while there is none, the sum of the step times."""
        measured = as_number(self.summary.get("seconds"))
        times = [t for _, t in self.find_series("time/step")]
        return measured if measured is not None else (sum(times) if times else None)

    def find_setting(self, section: str, key: str) -> Any:
        """What the recipe says there; None where it says nothing."""
        return as_dict(self.recipe.get(section)).get(key)

    def describe_algorithm(self) -> list[str]:
        """The algorithm in a sentence, and one for each of the user's functions in it; [] where the recipe is of another version."""
        try:
            algorithm = AlgorithmConfig.model_validate(as_dict(self.recipe.get("algorithm"))).resolved(self.own)
        except ValueError:
            return []
        return [describe_algorithm(algorithm), *map(describe_own, self.own.values())]

    def find_series(self, name: str) -> list[tuple[float, float]]:
        """(step, value) wherever the metric is a finite number."""
        pairs = ((as_number(row.get("step")), as_number(row.get(name))) for row in self.rows)
        return [(step, value) for step, value in pairs if step is not None and value is not None]

    def find_last_values(self, name: str, most: int = 10) -> list[float]:
        """The metric in the last steps that have it."""
        return [value for _, value in self.find_series(name)][-most:]

    def find_numbers(self, label: str, step: int | None = None) -> dict[str, dict[str, Any]]:
        """Set -> numbers of the newest evaluation with this label, or at this step; from summary.json where there is none."""
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

    def find_change(self, name: str, what: str = "pass@1") -> PairedDifference | None:
        """Paired change of one number on one set; None where no problem has verdicts on both sides, or they were not kept."""
        return self.changes.get(name, {}).get(what)

    @cached_property
    def changes(self) -> Mapping[str, Mapping[str, PairedDifference]]:
        """Set -> number -> its paired change, from summary.json; from the evaluations where it has none."""
        stored = as_dict(as_dict(self.summary.get("eval")).get("change"))
        if stored:
            sets = {name: {what: read_change(one) for what, one in as_dict(found).items()} for name, found in stored.items()}
            return {name: {what: one for what, one in found.items() if one is not None} for name, found in sets.items()}
        before, after = self.find_evaluation("before"), self.find_evaluation("after")
        return compare(before, after) if before and after else {}

    def find_evaluation(self, label: str) -> Evaluation | None:
        """The newest evaluation with this label, problem by problem; None where there is none, or it is not one."""
        try:
            return Evaluation.from_json(next(row for row in reversed(self.evaluations) if row.get("label") == label))
        except (StopIteration, KeyError, TypeError, ValueError, AttributeError):
            return None


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def parse_recipe(text: str) -> dict[str, Any]:
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return {}
    try:
        return bring_up_to_date(tree)
    except RecipeError:  # from the future: what it shares with today is still worth telling
        return tree


def as_dict(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}


def as_number(value: Any) -> float | None:
    """A finite number, or None for everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
