"""Monitors of a run: console (progress), jsonl (source of truth), tensorboard, wandb, trackio, user-defined. None can stop the run.

with build_monitors(recipe, folder, resume_step=None) as monitors:
    monitors.on_stage("training", total=recipe.train.num_steps)
    ...
        monitors.on_metrics(row)          # once per step; {"step": 12, "reward/mean": ...}
    monitors.on_finish(summary)

A new monitor is a file here, with a class derived from `Monitor`, and a line in MONITORS; recipes enable it with
`monitors.also = ["name"]`. User-defined monitors need no line: `monitors.also = ["package.module:Class"]`, or an object passed to
`cohort.train(monitors=[...])`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cohort.base.importing import NotImportable, load_function
from cohort.errors import CohortError, RecipeError
from cohort.observe.monitors.base import Monitor as Monitor
from cohort.observe.monitors.base import Monitors, Watched, check_methods
from cohort.observe.monitors.jsonl import JsonlMonitor, read_rows
from cohort.recipe.schema import Recipe
from cohort.recipe.sections import MonitorsConfig, suggest_nearest

if TYPE_CHECKING:
    from cohort.observe.diagnosis.checks import FindingWatch

MONITORS = {
    "tensorboard": "cohort.observe.monitors.trackers:TensorboardMonitor",
    "wandb": "cohort.observe.monitors.trackers:WandbMonitor",
    "trackio": "cohort.observe.monitors.trackers:TrackioMonitor",
    "console": "cohort.observe.monitors.console:ConsoleMonitor",
}
"""Monitors by name, with their classes, which are imported only if a run uses them. (jsonl is always on.)"""


@dataclass(frozen=True)
class Requested:
    """A monitor that a recipe enables."""

    spec: str
    """Its module and class; without a colon, an unknown name."""
    setting: str
    """The setting that enables it: the beginning of a sentence."""
    off: str
    """How to disable it: the end of a sentence."""

    def load(self) -> Any:
        """The class; a RecipeError if it cannot work here."""
        if ":" not in self.spec:
            raise RecipeError(
                f"monitors.also: unknown monitor {self.spec!r}{suggest_nearest(self.spec, MONITORS) or '.'} "
                f'Built in: {", ".join(MONITORS)}. Write your own monitor as "package.module:Class".'
            )
        try:
            kind = load_function(self.spec)
        except NotImportable as problem:
            raise self.error(str(problem).rstrip(".")) from problem
        if missing := kind.missing() if hasattr(kind, "missing") else "":
            raise self.error(missing)
        return kind

    def build(self, run: Watched) -> Any:
        """Create the monitor. Exceptions stop the run at its start, rather than letting it train unobserved."""
        kind = self.load()
        try:
            monitor = kind.for_run(run) if hasattr(kind, "for_run") else kind()
        except CohortError as problem:
            raise self.error(str(problem)) from problem
        except Exception as problem:
            raise self.error(f"it could not be started ({type(problem).__name__}: {problem})") from problem
        check_methods(monitor, "monitors.also")
        return monitor

    def error(self, reason: str) -> RecipeError:
        return RecipeError(f"{self.setting}, but {reason}, or {self.off}.")


def list_requested(settings: MonitorsConfig) -> Iterator[Requested]:
    """The enabled monitors: those of MONITORS in its order, then others in the recipe's order."""
    for name in dict.fromkeys([*MONITORS, *settings.also]):
        if getattr(settings, name, False) and name in MONITORS:
            yield Requested(MONITORS[name], f"monitors.{name} = true", f"set monitors.{name} = false")
        elif name in settings.also:
            yield Requested(MONITORS.get(name, name), f"monitors.also names {name}", "remove it from monitors.also")


def build_monitors(
    recipe: Recipe, folder: str | Path, resume_step: int | None = None, handed_in: Sequence[Any] = ()
) -> Monitors:
    """The monitors that the recipe enables. A missing requirement is a RecipeError here, before the run starts.

    resume_step: the step of the checkpoint that the run resumes from; records of later steps are removed, since these steps run again.
    handed_in: monitors passed from Python, in addition to the recipe's.
    """
    folder = Path(folder)
    jsonl = JsonlMonitor(folder)
    if resume_step is not None:
        jsonl.truncate_after(resume_step)
    run = Watched(recipe.model_copy(deep=True), folder, resume_step)
    requested = [monitor.build(run) for monitor in list_requested(recipe.monitors)]
    return Monitors([jsonl, *requested, *handed_in], watch=make_watch(recipe, jsonl))


def make_watch(recipe: Recipe, jsonl: JsonlMonitor) -> FindingWatch:
    """The watch that checks the run for findings, with the rows written before a resume."""
    from cohort.observe.diagnosis.checks import FindingWatch
    from cohort.observe.run_folder import read_known_functions

    plain = recipe.model_dump()
    own, _ = read_known_functions(jsonl.metrics.parent, plain)
    found = [row["name"] for row in read_rows(jsonl.events) if row.get("kind") == "finding" and "name" in row]
    return FindingWatch(plain, own, read_rows(jsonl.metrics), read_rows(jsonl.evaluations), found)


def find_monitor_problems(recipe: Recipe) -> list[str]:
    """Why monitors of the recipe cannot work on this machine; starts nothing."""
    problems = []
    for monitor in list_requested(recipe.monitors):
        try:
            monitor.load()
        except RecipeError as problem:
            problems.append(str(problem))
    return problems


def drop_monitors(recipe: Recipe) -> Recipe:
    """The recipe with all monitors disabled."""
    off = {name: False for name in MONITORS if name in MonitorsConfig.model_fields}
    return recipe.model_copy(update={"monitors": recipe.monitors.model_copy(update={**off, "also": []})})
