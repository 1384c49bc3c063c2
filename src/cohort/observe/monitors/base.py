"""The monitor interface, and the fan-out that keeps a failing monitor from stopping a run.

Contracts fail loudly, observers never do: a full disk, a closed terminal or a network that is down is reported once per
monitor, counted, and training goes on. `Interrupted` is a BaseException and passes through.

A monitor of a user's own need not derive from `Monitor`: a run calls those of its methods that the object has. What it can see
before the run (no method that a run calls, a name that is nearly one) is an error before anything is spent.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from cohort.base.trees import copy_value
from cohort.errors import RecipeError
from cohort.recipe.schema import Recipe
from cohort.recipe.sections import suggest_nearest

if TYPE_CHECKING:
    from cohort.observe.diagnosis.checks import FindingWatch
    from cohort.observe.diagnosis.finding import Finding


@dataclass(frozen=True)
class Watched:
    """The run that a monitor is made for."""

    recipe: Recipe
    folder: Path
    resume_step: int | None = None
    """The step of the checkpoint that the run goes on from; None: it is not known to have any."""


class Monitor:
    """What a run tells those who watch. Every method does nothing by default: a monitor overrides what it cares about."""

    @classmethod
    def missing(cls) -> str:
        """What must be installed first, and how, without a full stop; "" when nothing is missing. `cohort doctor` asks too."""
        return ""

    @classmethod
    def for_run(cls, run: Watched) -> Monitor:
        """The monitor of a run whose recipe names this class; what it raises is said in words, and the run does not start."""
        return cls()

    def on_stage(self, stage: str, total: int = 0, done: int = 0) -> None:
        """A stage begins: "cold start", "baseline evaluation", "training", "final evaluation".

        total: how many steps it has (0: not known); done: how many of them an earlier process already took.
        """

    def on_progress(self, done: int, values: Mapping[str, float]) -> None:
        """Progress inside a stage that writes no metric rows, such as the cold start: {"loss": 1.2, "success": 0.3}."""

    def on_sampling(self, done: int, total: int) -> None:
        """So many of a step's completions are sampled. Called where reward parts judge them meanwhile, for each that is finished."""

    def on_scoring(self, part: str, done: int, total: int) -> None:
        """A reward part has judged `done` of the completions it was given. Called from the threads that judge."""

    def on_metrics(self, row: Mapping[str, Any]) -> None:
        """One step of training is complete: {"step": 12, "reward/mean": 0.41, ...}."""

    def on_ranks(self, step: int, ranks: Sequence[Mapping[str, Any]]) -> None:
        """Of a run with several ranks: what each of them did in a step, as a line of ranks.jsonl has it. Seconds with waiting in them.

        {"rank": 0, "host": "a", "seconds": {"rollout": 1.2, ...}, "waited": {"rollout": 0.4}, "tokens": {"rollout": 512, ...}, ...}
        """

    def on_rollouts(self, step: int, rollouts: Sequence[Mapping[str, Any]]) -> None:
        """What the policy wrote in a step, after its metrics: a row per completion, as the files of rollouts/ have them, without tokens.

        Called at step 1 and every `monitors.show_every` steps. {"prompt": ..., "completion": ..., "reward": 1.0, "reference_answer": "46", ...}
        """

    def on_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        """An evaluation is complete: `Evaluation.to_json()`, with its label set."""

    def on_finding(self, step: int, finding: Mapping[str, Any]) -> None:
        """What the numbers mean, in words, once for each finding, after the metrics of the step that shows it.

        {"name": "truncation", "level": "alarm", "what": ..., "why": ..., "fix": ..., "evidence": [...], "rows": [[12, 17], ...], ...}
        rows: (step, row) of the rollouts that the evidence names; text: all of it in one; again: a process of the run that was resumed
        has told it already.
        """

    def on_message(self, text: str) -> None:
        """Something a person should read once: a warning about the recipe, a checkpoint saved, prompts left out."""

    def on_finish(self, summary: Mapping[str, Any]) -> None:
        """The run is over, whatever its status; `summary` is what summary.json holds, and report.html is written."""

    def close(self) -> None:
        """Release terminal, files and connections. Called exactly once, also when the run ends by an exception."""


METHODS = tuple(name for name in vars(Monitor) if name.startswith("on_") or name == "close")
"""What a run calls."""


def check_methods(monitor: Any, place: str) -> None:
    """Refuse an object that would watch nothing, or not what its author meant. Names with on_ belong to the run."""
    kind = type(monitor).__name__
    if isinstance(monitor, type):
        raise RecipeError(f"{place}: {monitor.__name__} is a class; give an object of it: {monitor.__name__}().")
    called = f"A run calls {', '.join(METHODS)}, those of them that the monitor has."
    for name in dir(monitor):
        if name.startswith("on_") and name not in METHODS:
            raise RecipeError(f"{place}: no run calls {name!r} of {kind}{suggest_nearest(name, METHODS) or '.'} {called}")
    if not any(callable(getattr(monitor, name, None)) for name in METHODS):
        raise RecipeError(f"{place}: {kind} has none of the methods of a monitor. {called}")


def explain_not_installed(module: str, package: str) -> str:
    """What `missing` says where a module cannot be imported that comes with an extra of the package's name."""
    try:
        importlib.import_module(module)
    except ImportError:
        return f"the {package} package is not installed. Install it with `pip install 'cohort-rl[{package}]'`"
    return ""


def copy_rows(value: Any) -> Any:
    """What one monitor is given: it may change it without changing what the run and the other monitors have."""
    if isinstance(value, list):
        return [copy_rows(one) for one in value]
    return {name: copy_value(inner) for name, inner in value.items()} if isinstance(value, Mapping) else value


def describe_finding(finding: Finding, again: bool) -> dict[str, Any]:
    """A finding as monitors are told it."""
    rows = [list(place) for place in finding.rows]
    said = {name: getattr(finding, name) for name in ("name", "level", "what", "why", "fix", "text")}
    return said | {"evidence": list(finding.evidence), "rows": rows, "again": again}


class Monitors(Monitor):
    """Passes every call to every monitor that has the method. An exception of one is reported once and never reaches the caller."""

    def __init__(
        self, monitors: Sequence[Any], report: Callable[[str], None] | None = None, watch: FindingWatch | None = None
    ) -> None:
        """watch: who looks for findings in what passes through; None: nobody does."""
        self.monitors, self.watch = tuple(monitors), watch
        self.failures: dict[str, int] = {}
        self.report = report or (lambda text: print(text, file=sys.stderr))

    def on_stage(self, stage: str, total: int = 0, done: int = 0) -> None:
        self.tell("on_stage", stage, total, done)

    def on_progress(self, done: int, values: Mapping[str, float]) -> None:
        self.tell("on_progress", done, values)

    def on_sampling(self, done: int, total: int) -> None:
        self.tell("on_sampling", done, total)

    def on_scoring(self, part: str, done: int, total: int) -> None:
        self.tell("on_scoring", part, done, total)

    def on_metrics(self, row: Mapping[str, Any]) -> None:
        self.tell("on_metrics", row)
        if self.watch is not None:
            self.tell_findings(self.watch, lambda watch: watch.add_row(row))

    def on_ranks(self, step: int, ranks: Sequence[Mapping[str, Any]]) -> None:
        self.tell("on_ranks", step, ranks)

    def on_rollouts(self, step: int, rollouts: Sequence[Mapping[str, Any]]) -> None:
        self.tell("on_rollouts", step, rollouts)

    def on_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        self.tell("on_evaluation", evaluation)
        if self.watch is not None:
            self.watch.evaluations.append(evaluation)

    def on_finding(self, step: int, finding: Mapping[str, Any]) -> None:
        self.tell("on_finding", step, finding)

    def on_message(self, text: str) -> None:
        self.tell("on_message", text)

    def on_finish(self, summary: Mapping[str, Any]) -> None:
        # The final evaluation comes after the last step. A run that goes on later looks when it would have looked.
        if self.watch is not None and summary.get("status") == "finished":
            self.tell_findings(self.watch, lambda watch: watch.check())
        self.tell("on_finish", summary)

    def close(self) -> None:
        self.tell("close")

    def tell(self, method: str, *arguments: Any) -> None:
        for monitor in self.monitors:
            try:
                if call := getattr(monitor, method, None):
                    call(*map(copy_rows, arguments))
            except Exception as problem:
                self.note_failure(monitor, method, problem)

    def tell_findings(self, watch: FindingWatch, look: Callable[[FindingWatch], Sequence[Finding]]) -> None:
        try:
            known = {*watch.known}
            for finding in look(watch):
                self.on_finding(watch.step, describe_finding(finding, again=finding.name in known))
        except Exception as problem:
            self.note_failure(watch, "look", problem)

    def note_failure(self, monitor: Any, method: str, problem: Exception) -> None:
        name = type(monitor).__name__
        self.failures[name] = self.failures.get(name, 0) + 1
        if self.failures[name] > 1:
            return
        try:
            self.report(
                f"{name} failed in {method} ({type(problem).__name__}: {problem}). Training goes on; further failures of this "
                "monitor are counted, not printed."
            )
        except Exception:  # stderr itself may be closed; there is nobody left to tell
            self.failures["report"] = self.failures.get("report", 0) + 1

    def __enter__(self) -> Monitors:
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
