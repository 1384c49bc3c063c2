"""The monitor interface, and the fan-out that keeps a failing monitor from stopping a run.

Contracts fail loudly, observers never do: a full disk, a closed terminal or a network that is down is reported once per
monitor, counted, and training goes on. `Interrupted` is a BaseException and passes through.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any


class Monitor:
    """What a run tells those who watch. Every method does nothing by default: a monitor overrides what it cares about."""

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

    def on_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        """An evaluation is complete: `Evaluation.to_json()`, with its label set."""

    def on_message(self, text: str) -> None:
        """Something a person should read once: a warning about the recipe, a checkpoint saved, prompts left out."""

    def on_finish(self, summary: Mapping[str, Any]) -> None:
        """The run is over, whatever its status; `summary` is what summary.json holds, and report.html is written."""

    def close(self) -> None:
        """Release terminal, files and connections. Called exactly once, also when the run ends by an exception."""


class Monitors(Monitor):
    """Passes every call to every monitor. An exception of one is reported once and never reaches the caller."""

    def __init__(self, monitors: Sequence[Monitor], report: Callable[[str], None] | None = None) -> None:
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
                getattr(monitor, method)(*arguments)
            except Exception as problem:
                self.note(monitor, method, problem)

    def note(self, monitor: Monitor, method: str, problem: Exception) -> None:
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
