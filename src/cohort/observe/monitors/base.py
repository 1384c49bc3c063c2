"""The monitor interface, and the dispatcher that keeps a failing monitor from stopping a run.

Contracts fail loudly, observers never do: a full disk, a closed terminal or a network failure is reported once per monitor and counted, and
training continues. `Interrupted` is a BaseException and passes through.

A user's monitor need not derive from `Monitor`: a run calls those of its methods that exist. An object without any such method, or with a
misspelt one, is an error before the run starts.
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
    """The run that a monitor is created for."""

    recipe: Recipe
    folder: Path
    resume_step: int | None = None
    """The step of the checkpoint that the run resumes from; None for a new run."""


class Monitor:
    """The events of a run. Every method does nothing by default; a monitor overrides those it needs."""

    @classmethod
    def missing(cls) -> str:
        """What must be installed first, and how, without a full stop; "" if nothing is missing. `cohort doctor` checks it too."""
        return ""

    @classmethod
    def for_run(cls, run: Watched) -> Monitor:
        """Create the monitor for a run whose recipe names this class. An exception is reported and the run does not start."""
        return cls()

    def on_stage(self, stage: str, total: int = 0, done: int = 0) -> None:
        """A stage begins: "cold start", "baseline evaluation", "training", "final evaluation".

        total: its number of steps, or of an evaluation's completions (0: unknown); done: steps already taken by an earlier process.
        """

    def on_progress(self, done: int, values: Mapping[str, float]) -> None:
        """Progress within a stage without metric rows: {"loss": 1.2, "success": 0.3} of the cold start, {} of an evaluation."""

    def on_sampling(self, done: int, total: int) -> None:
        """Completions sampled in this step. Called after each completion if rewards are computed during sampling."""

    def on_scoring(self, part: str, done: int, total: int) -> None:
        """A reward part has scored `done` of its completions. Called from the scoring threads."""

    def on_metrics(self, row: Mapping[str, Any]) -> None:
        """A training step is complete: {"step": 12, "reward/mean": 0.41, ...}."""

    def on_ranks(self, step: int, ranks: Sequence[Mapping[str, Any]]) -> None:
        """The record of each rank for a step, as in ranks.jsonl; only with several ranks. Seconds include waiting.

        {"rank": 0, "host": "a", "seconds": {"rollout": 1.2, ...}, "waited": {"rollout": 0.4}, "tokens": {"rollout": 512, ...}, ...}
        """

    def on_rollouts(self, step: int, rollouts: Sequence[Mapping[str, Any]]) -> None:
        """The completions of a step, after its metrics: one row each, as in the files of rollouts/, without tokens.

        Called at step 1 and every `monitors.show_every` steps. {"prompt": ..., "completion": ..., "reward": 1.0, "reference_answer": "46", ...}
        """

    def on_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        """An evaluation is complete: `Evaluation.to_json()`, with its label set."""

    def on_finding(self, step: int, finding: Mapping[str, Any]) -> None:
        """A finding about the run, once per finding, after the metrics of the step that shows it.

        {"name": "truncation", "level": "alarm", "what": ..., "why": ..., "fix": ..., "evidence": [...], "rows": [[12, 17], ...], ...}
        rows: (step, row) of the rollouts in the evidence; text: all texts in one; again: already reported before the run was resumed.
        """

    def on_message(self, text: str) -> None:
        """A message for the user: a warning about the recipe, a saved checkpoint, dropped prompts."""

    def on_finish(self, summary: Mapping[str, Any]) -> None:
        """The run has ended, with any status. `summary` is the content of summary.json; report.html is written."""

    def close(self) -> None:
        """Release terminal, files and connections. Called exactly once, also after an exception."""


METHODS = tuple(name for name in vars(Monitor) if name.startswith("on_") or name == "close")
"""The methods that a run calls."""


def check_methods(monitor: Any, place: str) -> None:
    """Refuse an object without any monitor method, or with an unknown method whose name starts with on_."""
    kind = type(monitor).__name__
    if isinstance(monitor, type):
        raise RecipeError(f"{place}: {monitor.__name__} is a class; pass an instance: {monitor.__name__}().")
    called = f"A run calls these methods, if they exist: {', '.join(METHODS)}."
    for name in dir(monitor):
        if name.startswith("on_") and name not in METHODS:
            raise RecipeError(
                f"{place}: {kind} has the unknown method {name!r}{suggest_nearest(name, METHODS) or '.'} {called}"
            )
    if not any(callable(getattr(monitor, name, None)) for name in METHODS):
        raise RecipeError(f"{place}: {kind} has no method of a monitor. {called}")


def explain_not_installed(module: str, package: str) -> str:
    """The text for `missing` if a module cannot be imported; the package's extra installs it. Otherwise ""."""
    try:
        importlib.import_module(module)
    except ImportError:
        return f"the {package} package is not installed. Install it with `pip install 'cohort-rl[{package}]'`"
    return ""


def copy_rows(value: Any) -> Any:
    """A copy for one monitor, which may change it without affecting the run or other monitors."""
    if isinstance(value, list):
        return [copy_rows(one) for one in value]
    return {name: copy_value(inner) for name, inner in value.items()} if isinstance(value, Mapping) else value


def describe_finding(finding: Finding, again: bool) -> dict[str, Any]:
    """A finding as monitors receive it."""
    texts = {name: getattr(finding, name) for name in ("name", "level", "what", "why", "fix", "text")}
    return texts | {"evidence": list(finding.evidence), "rows": [list(place) for place in finding.rows], "again": again}


class Monitors(Monitor):
    """Passes every call to every monitor that has the method. Exceptions are reported once per monitor and never reach the caller."""

    def __init__(
        self, monitors: Sequence[Any], report: Callable[[str], None] | None = None, watch: FindingWatch | None = None
    ) -> None:
        """watch: checks the metrics for findings; None: no checks."""
        self.monitors, self.watch = tuple(monitors), watch
        self.failures: dict[str, int] = {}
        self.report = report or (lambda text: print(text, file=sys.stderr))

    def on_metrics(self, row: Mapping[str, Any]) -> None:
        self.dispatch("on_metrics", row)
        if self.watch is not None:
            self.dispatch_findings(self.watch, lambda watch: watch.add_row(row))

    def on_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        self.dispatch("on_evaluation", evaluation)
        if self.watch is not None:
            self.watch.evaluations.append(evaluation)

    def on_finish(self, summary: Mapping[str, Any]) -> None:
        # The final evaluation comes after the last step. An interrupted run checks again after it is resumed.
        if self.watch is not None and summary.get("status") == "finished":
            self.dispatch_findings(self.watch, lambda watch: watch.check())
        self.dispatch("on_finish", summary)

    def dispatch(self, method: str, *arguments: Any, **named: Any) -> None:
        for monitor in self.monitors:
            try:
                if call := getattr(monitor, method, None):
                    call(*map(copy_rows, arguments), **named)
            except Exception as problem:
                self.note_failure(monitor, method, problem)

    def dispatch_findings(self, watch: FindingWatch, check: Callable[[FindingWatch], Sequence[Finding]]) -> None:
        try:
            known = {*watch.known}
            for finding in check(watch):
                self.on_finding(watch.step, describe_finding(finding, again=finding.name in known))
            for finding in watch.withdrawn:
                self.on_message(f"withdrawn at step {watch.step}, for it no longer holds: {finding.what}")
        except Exception as problem:
            self.note_failure(watch, "check", problem)

    def note_failure(self, monitor: Any, method: str, problem: Exception) -> None:
        name = type(monitor).__name__
        self.failures[name] = self.failures.get(name, 0) + 1
        if self.failures[name] > 1:
            return
        try:
            self.report(
                f"{name} failed in {method} ({type(problem).__name__}: {problem}). Training continues; further failures of this "
                "monitor are counted, but not printed."
            )
        except Exception:  # stderr may be closed
            self.failures["report"] = self.failures.get("report", 0) + 1

    def __enter__(self) -> Monitors:
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def forward(method: str) -> Callable[..., None]:
    def call(self: Monitors, *arguments: Any, **named: Any) -> None:
        self.dispatch(method, *arguments, **named)

    return call


for name in METHODS:
    if name not in vars(Monitors):
        setattr(Monitors, name, forward(name))
