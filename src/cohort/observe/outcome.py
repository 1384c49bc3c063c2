"""The outcome of a run: its result object, its summary, and sentences on what changed. Imports no torch.

The report, the console and comparisons take their sentences from here: "rose" and "fell" only if a paired test confirms it.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.base.text import write_count, write_percent
from cohort.errors import CohortError, RunError
from cohort.evaluation.estimators import UNCLEAR, PairedDifference
from cohort.observe.monitors.jsonl import read_rows
from cohort.recipe.schema import Recipe


@dataclass(frozen=True, repr=False)
class RunResult:
    """What `cohort.train` returns."""

    folder: Path
    """Absolute."""
    status: str
    """finished, interrupted or failed."""
    summary: dict[str, Any]
    """The contents of summary.json: steps, seconds, and the evaluations before and after with their intervals."""

    @property
    def model(self) -> Path:
        """The trained model; loads with AutoModelForCausalLM and AutoTokenizer."""
        return self.folder / "model"

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl, one per step: `[row["reward/mean"] for row in run.metrics]`."""
        return read_rows(self.folder / "metrics.jsonl")

    def __fspath__(self) -> str:
        """The folder: a result can be used wherever a run folder is expected, as in `cohort.train(model=run)`."""
        return str(self.folder)

    def __repr__(self) -> str:
        """`RunResult(finished, 200 steps, pass@1 54.1 % -> 95.2 %, runs/demo)`."""
        facts = [
            self.status,
            write_count(int(self.summary.get("steps") or 0), "step"),
            "stopped early" if self.summary.get("stopped") else "",
            describe_before_and_after(self.summary.get("eval")),
            str(self.folder),
        ]
        return f"RunResult({', '.join(filter(None, facts))})"


def begin_summary(recipe: Recipe) -> dict[str, Any]:
    """The summary of a run at its start."""
    return {"status": "running", "steps": 0, "seconds": 0.0, "eval": {"before": {}, "after": {}}, "seed": recipe.seed}


def explain_exit(leaving: SystemExit | KeyboardInterrupt) -> RunError:
    """The error for user code, such as a reward or a monitor, that calls sys.exit or raises KeyboardInterrupt in the trainer's process."""
    did = f"called sys.exit({leaving.code!r})" if isinstance(leaving, SystemExit) else "raised KeyboardInterrupt"
    return RunError(f"something in the trainer's process {did}; raise an error instead, or stop the run with train.stop_when.")


def describe_failure(problem: Exception) -> dict[str, Any]:
    """What summary.json keeps of the error that ended a run: message, type, and the line of code if it is not an error of Cohort."""
    frames = traceback.extract_tb(problem.__traceback__)
    where = ""
    if frames and not isinstance(problem, CohortError):  # the message of a CohortError says what is wrong
        where = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}, in {frames[-1].name}"
    return {"error": str(problem) or type(problem).__name__, "failure": {"type": type(problem).__name__, "where": where}}


# -- what changed ------------------------------------------------------------------------------------------------------


def read_change(plain: Any) -> PairedDifference | None:
    """A stored difference; None if it is missing or malformed."""
    try:
        return PairedDifference.from_json(plain) if plain else None
    except (KeyError, TypeError):
        return None


def describe_change(name: str, what: str, before: float, after: float, change: PairedDifference | None) -> tuple[str, str]:
    """(the change in one plain sentence, its statistical certainty).

    The difference covers the problems that both evaluations have; it equals after - before if all are common.
    """
    ends = f"from {write_percent(before, 1)} to {write_percent(after, 1)}"
    points = f"{100 * (after - before if change is None else change.difference):+.1f} points"
    subject = f"{what} on {name_set(name)}"
    if change is None:
        return f"{subject} went {ends}.", f"A change of {points}; the evaluations share no problems, so it is not tested"
    if change.verdict == UNCLEAR:
        sentence = f"{subject} went {ends}: no clear change; the difference is within the noise of the evaluation."
    else:
        sentence = f"{subject} {change.verdict} {ends}."
    return sentence, f"A change of {points} ({change.sureness})"


def describe_changes(evaluated: Mapping[str, Any]) -> Iterator[str]:
    """For each set evaluated before and after: the change of pass@1 and its certainty, in one line."""
    for name, sides in (evaluated.get("sets") or {}).items():
        before, after = find_ends(sides)
        if before is not None and after is not None:
            change = read_change(((evaluated.get("change") or {}).get(name) or {}).get("pass@1"))
            yield "{} {}.".format(*describe_change(name, "pass@1", before, after, change))


def describe_before_and_after(evaluated: Mapping[str, Any] | None) -> str:
    """ "pass@1 41.2 % -> 68.3 %" of the first set; "" if nothing was measured."""
    values = find_ends(evaluated or {})
    sides = ("not measured" if value is None else write_percent(value, 1) for value in values)
    return "" if values == (None, None) else f"pass@1 {' -> '.join(sides)}"


def find_ends(sides: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """pass@1 before and after."""
    before, after = (((sides.get(side) or {}).get("pass@1") or {}).get("value") for side in ("before", "after"))
    return before, after


def write_difference(change: PairedDifference) -> tuple[str, str]:
    """A difference in points and its interval: ("+4.1", "[+2.0, +6.3]"); no interval if there are too few problems."""
    interval = "" if change.low is None or change.high is None else f"[{100 * change.low:+.1f}, {100 * change.high:+.1f}]"
    return f"{100 * change.difference:+.1f}", interval


def colour_change(change: PairedDifference | None, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """up or down for a clear change, by the paired test, or without one by intervals that do not overlap; otherwise ""."""
    if change is not None:
        return {"rose": "up", "fell": "down"}.get(change.verdict, "")
    low, high, later_low, later_high = (side.get(end) for side in (before, after) for end in ("low", "high"))
    if low is None or high is None or later_low is None or later_high is None:
        return ""
    return "up" if later_low > high else "down" if later_high < low else ""


def name_set(name: str) -> str:
    """The name of an evaluation set in a sentence."""
    return "held-out problems" if name in ("held_out", "held-out", "held-out problems") else name
