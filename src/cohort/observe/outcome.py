"""A run in one line: how it ended, how far it came, what it changed, and where it lies. Imports no torch."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.base.text import write_count, write_percent
from cohort.errors import CohortError, RunError
from cohort.evaluation.estimators import UNCLEAR, PairedDifference
from cohort.recipe.schema import Recipe

# DOC of changes.py: """What two evaluations say of each other, in words: "rose" and "fell" only where a paired test says so. No torch.
#
# The report, the console and comparisons take their words from here, so that none claims what another does not.
# """
#


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


# == from changes.py


def read_change(plain: Any) -> PairedDifference | None:
    """A stored difference; None where there is none, or it is not one."""
    try:
        return PairedDifference.from_json(plain) if plain else None
    except (KeyError, TypeError):
        return None


def describe_change(name: str, what: str, before: float, after: float, change: PairedDifference | None) -> tuple[str, str]:
    """(one sentence anybody understands, how sure it is).

    The difference is that of the problems both have; the same as after - before where all are common.
    """
    ends = f"from {write_percent(before, 1)} to {write_percent(after, 1)}"
    points = f"{100 * (after - before if change is None else change.difference):+.1f} points"
    subject = f"{what} on {name_set(name)}"
    if change is None:
        return f"{subject} went {ends}.", f"A change of {points}; no problem can be paired, so it is not tested"
    if change.verdict == UNCLEAR:
        sentence = f"{subject} went {ends}: no clear change, nothing that the evaluation can tell from noise."
    else:
        sentence = f"{subject} {change.verdict} {ends}."
    return sentence, f"A change of {points} ({change.sureness})"


def describe_changes(evaluated: Mapping[str, Any]) -> Iterator[str]:
    """One line per set that was evaluated before and after: what became of pass@1, and how sure that is."""
    for name, sides in (evaluated.get("sets") or {}).items():
        before, after = find_ends(sides)
        if before is not None and after is not None:
            change = read_change(((evaluated.get("change") or {}).get(name) or {}).get("pass@1"))
            yield "{} {}.".format(*describe_change(name, "pass@1", before, after, change))


def describe_before_and_after(evaluated: Mapping[str, Any] | None) -> str:
    """ "pass@1 41.2 % -> 68.3 %" of the first set; "" where nothing was measured."""
    values = find_ends(evaluated or {})
    sides = ("not measured" if value is None else write_percent(value, 1) for value in values)
    return "" if values == (None, None) else f"pass@1 {' -> '.join(sides)}"


def find_ends(sides: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """The pass@1 before and after."""
    before, after = (((sides.get(side) or {}).get("pass@1") or {}).get("value") for side in ("before", "after"))
    return before, after


def write_difference(change: PairedDifference) -> tuple[str, str]:
    """A difference in points and its interval: ("+4.1", "[+2.0, +6.3]"); without one where there are too few problems."""
    interval = "" if change.low is None or change.high is None else f"[{100 * change.low:+.1f}, {100 * change.high:+.1f}]"
    return f"{100 * change.difference:+.1f}", interval


def colour_change(change: PairedDifference | None, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """up or down, the colours of a change, where it is clear: by the paired test, or, untested, by intervals that do not meet."""
    if change is not None:
        return {"rose": "up", "fell": "down"}.get(change.verdict, "")
    low, high, later_low, later_high = (side.get(end) for side in (before, after) for end in ("low", "high"))
    if low is None or high is None or later_low is None or later_high is None:
        return ""
    return "up" if later_low > high else "down" if later_high < low else ""


def name_set(name: str) -> str:
    """A set of problems as a sentence calls it."""
    return "held-out problems" if name in ("held_out", "held-out", "held-out problems") else name
