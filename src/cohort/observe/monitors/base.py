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
from typing import Any

from cohort.errors import RecipeError
from cohort.recipe.schema import Recipe
from cohort.recipe.section import suggest_nearest


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

    def on_scoring(self, part: str, done: int, total: int) -> None:
        """A reward part has judged `done` of the completions it was given. Called from the threads that judge."""

    def on_metrics(self, row: Mapping[str, Any]) -> None:
        """One step of training is complete: {"step": 12, "reward/mean": 0.41, ...}."""

    def on_rollouts(self, step: int, rollouts: Sequence[Mapping[str, Any]]) -> None:
        """What the policy wrote in a step, after its metrics: a row per completion, as the files of rollouts/ have them, without tokens.

        Called at step 1 and every `monitors.show_every` steps. {"prompt": ..., "completion": ..., "reward": 1.0, "gold": "46", ...}
        """

    def on_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        """An evaluation is complete: `Evaluation.to_json()`, with its label set."""

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
    """A monitor that takes from its rows what it does not want takes it from nobody else."""
    if isinstance(value, list):
        return [copy_rows(one) for one in value]
    return dict(value) if isinstance(value, Mapping) else value


class Monitors(Monitor):
    """Passes every call to every monitor that has the method. An exception of one is reported once and never reaches the caller."""

    def __init__(self, monitors: Sequence[Any], report: Callable[[str], None] | None = None) -> None:
        self.monitors = tuple(monitors)
        self.failures: dict[str, int] = {}
        self.report = report or (lambda text: print(text, file=sys.stderr))

    def on_stage(self, stage: str, total: int = 0, done: int = 0) -> None:
        self.tell("on_stage", stage, total, done)

    def on_progress(self, done: int, values: Mapping[str, float]) -> None:
        self.tell("on_progress", done, values)

    def on_scoring(self, part: str, done: int, total: int) -> None:
        self.tell("on_scoring", part, done, total)

    def on_metrics(self, row: Mapping[str, Any]) -> None:
        self.tell("on_metrics", row)

    def on_rollouts(self, step: int, rollouts: Sequence[Mapping[str, Any]]) -> None:
        self.tell("on_rollouts", step, rollouts)

    def on_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        self.tell("on_evaluation", evaluation)

    def on_message(self, text: str) -> None:
        self.tell("on_message", text)

    def on_finish(self, summary: Mapping[str, Any]) -> None:
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
