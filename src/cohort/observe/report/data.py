"""Reads a run folder, whatever state it is in: every file may be missing, torn or of an unexpected shape."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from cohort.algorithms.named import Own
from cohort.errors import RecipeError
from cohort.evaluation.estimators import PairedDifference
from cohort.evaluation.evaluate import Evaluation, compare
from cohort.observe.changes import read_change
from cohort.observe.monitors.jsonl import read_rows
from cohort.observe.run_folder import read_known_functions
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.versions import bring_up_to_date
from cohort.recipe.words import describe, describe_own


@dataclass(frozen=True)
class RunData:
    """What the report is made from. Plain JSON values, checked where they are used."""

    folder: Path
    recipe_text: str
    recipe: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    evaluations: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any]
    samples_before: Sequence[Mapping[str, Any]]
    samples_after: Sequence[Mapping[str, Any]]
    last_written: str
    own: Own = field(default_factory=dict)
    """What algorithm.json says of the user's functions."""
    own_problem: str = ""
    """Why it could not be used."""

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def status(self) -> str:
        known = ("finished", "interrupted", "running", "failed")
        status = self.summary.get("status")
        return status if status in known else "unfinished"

    @property
    def steps(self) -> int:
        last = number(self.rows[-1].get("step")) if self.rows else None
        return int(number(self.summary.get("steps")) or last or 0)

    @property
    def seconds(self) -> float | None:
        """From the summary; while there is none, the sum of the step times."""
        measured = number(self.summary.get("seconds"))
        times = [t for _, t in self.series("time/step")]
        return measured if measured is not None else (sum(times) if times else None)

    def describe_algorithm(self) -> list[str]:
        """The algorithm in a sentence, and one for each of the user's functions in it; [] where the recipe is of another version."""
        try:
            algorithm = AlgorithmConfig.model_validate(as_dict(self.recipe.get("algorithm"))).resolved(self.own)
        except ValueError:
            return []
        return [describe(algorithm), *map(describe_own, self.own.values())]

    def lines_below(self) -> list[str]:
        """What stands under the name of the run."""
        return [*self.describe_algorithm(), self.own_problem, str(self.summary.get("stopped", ""))]

    def series(self, name: str) -> list[tuple[float, float]]:
        """(step, value) wherever the metric is a finite number."""
        pairs = ((number(row.get("step")), number(row.get(name))) for row in self.rows)
        return [(step, value) for step, value in pairs if step is not None and value is not None]

    def numbers(self, label: str) -> dict[str, dict[str, Any]]:
        """Set -> numbers of the evaluation with this label, newest first choice; from summary.json where there is none."""
        for evaluation in reversed(self.evaluations):
            if evaluation.get("label") == label:
                return {str(name): as_dict(values) for name, values in as_dict(evaluation.get("sets")).items()}
        entry = as_dict(self.summary.get("eval"))
        sets = {str(name): as_dict(as_dict(sides).get(label)) for name, sides in as_dict(entry.get("sets")).items()}
        sets = {name: values for name, values in sets.items() if values}
        first = as_dict(entry.get(label))
        return sets or ({"held-out problems": first} if first else {})

    def change(self, name: str, what: str = "pass@1") -> PairedDifference | None:
        """Paired change of one number on one set; None where no problem has verdicts on both sides, or they were not kept."""
        return self.changes.get(name, {}).get(what)

    @cached_property
    def changes(self) -> Mapping[str, Mapping[str, PairedDifference]]:
        """Set -> number -> its paired change, from summary.json; from the evaluations where it has none."""
        stored = as_dict(as_dict(self.summary.get("eval")).get("change"))
        if stored:
            sets = {name: {what: read_change(one) for what, one in as_dict(found).items()} for name, found in stored.items()}
            return {name: {what: one for what, one in found.items() if one is not None} for name, found in sets.items()}
        try:
            before, after = (Evaluation.from_json(self.labelled(label)) for label in ("before", "after"))
            return compare(before, after).sets
        except (KeyError, TypeError, ValueError, AttributeError):
            return {}

    def labelled(self, label: str) -> Mapping[str, Any]:
        return next((e for e in reversed(self.evaluations) if e.get("label") == label), {})


def load_run(folder: Path) -> RunData:
    recipe_text = read_text(folder / "recipe.toml")
    own, own_problem = read_known_functions(folder, parse_recipe(recipe_text))
    return RunData(
        folder=folder,
        recipe_text=recipe_text,
        recipe=parse_recipe(recipe_text),
        rows=[row for row in read_rows(folder / "metrics.jsonl") if number(row.get("step")) is not None],
        evaluations=[row for row in read_rows(folder / "evaluations.jsonl") if number(row.get("step")) is not None],
        summary=parse_json(read_text(folder / "summary.json")),
        samples_before=read_rows(folder / "samples" / "before.jsonl"),
        samples_after=read_rows(folder / "samples" / "after.jsonl"),
        last_written=newest(folder),
        own=own,
        own_problem=own_problem,
    )


def newest(folder: Path) -> str:
    """When the run last wrote a number. The report's own time of writing would say nothing about the run."""
    files = (folder / name for name in ("metrics.jsonl", "evaluations.jsonl", "summary.json", "recipe.toml"))
    times = [file.stat().st_mtime for file in files if file.exists()]
    return datetime.fromtimestamp(max(times)).strftime("%d %B %Y, %H:%M").lstrip("0") if times else ""


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def parse_json(text: str) -> dict[str, Any]:
    try:
        return as_dict(json.loads(text))
    except ValueError:
        return {}


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


def number(value: Any) -> float | None:
    """A finite number, or None for everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
