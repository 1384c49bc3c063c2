"""A run in one line: how it ended, how far it came, what it changed, and where it lies. Imports no torch."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.base.text import write_count
from cohort.errors import CohortError, RunError
from cohort.observe.changes import describe_before_and_after
from cohort.recipe.schema import Recipe


@dataclass(frozen=True, repr=False)
class RunResult:
    """What `cohort.train` gives back."""

    folder: Path
    """Absolute."""
    status: str
    """finished, interrupted or failed."""
    summary: dict[str, Any]
    """What summary.json holds: steps, seconds, and the evaluations before and after with their intervals."""

    @property
    def model(self) -> Path:
        """The trained model; loads with AutoModelForCausalLM and AutoTokenizer."""
        return self.folder / "model"

    def __fspath__(self) -> str:
        """The folder: a result stands wherever a run folder does, as in `cohort.train(model=run)`."""
        return str(self.folder)

    def __repr__(self) -> str:
        return describe_result(self.folder, self.status, self.summary)


def begin_summary(recipe: Recipe) -> dict[str, Any]:
    """The summary of a run that has earned nothing yet."""
    return {"status": "running", "steps": 0, "seconds": 0.0, "eval": {"before": {}, "after": {}}, "seed": recipe.seed}


def describe_result(folder: Path, status: str, summary: Mapping[str, Any]) -> str:
    """`RunResult(finished, 200 steps, pass@1 54.1 % -> 95.2 %, runs/demo)`: what a notebook shows of a result."""
    steps = int(summary.get("steps") or 0)
    words = [
        status,
        write_count(steps, "step"),
        "stopped early" if summary.get("stopped") else "",
        describe_before_and_after(summary.get("eval")),
        str(folder),
    ]
    return f"RunResult({', '.join(word for word in words if word)})"


def explain_exit(leaving: SystemExit) -> RunError:
    """A reward or a monitor of the user's that leaves the trainer's process, as an error that says so."""
    return RunError(f"something in the trainer's process called sys.exit({leaving.code!r}); raise an error instead.")


def describe_failure(problem: Exception) -> dict[str, Any]:
    """What summary.json keeps of the error that ended a run: its words, its kind, and the line of code where that says something."""
    frames = traceback.extract_tb(problem.__traceback__)
    where = ""
    if frames and not isinstance(problem, CohortError):  # those are raised on purpose, and their words say what is wrong
        where = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}, in {frames[-1].name}"
    return {"error": str(problem) or type(problem).__name__, "failure": {"type": type(problem).__name__, "where": where}}
