"""Who watches a run: console (progress), jsonl (source of truth), tensorboard, wandb, trackio, a user's own. None of them can stop it.

with build_monitors(recipe, folder, resume_step=None) as monitors:
    monitors.on_stage("training", total=recipe.train.num_steps)
    ...
        monitors.on_metrics(row)          # once per step; {"step": 12, "reward/mean": ...}
    monitors.on_finish(summary)

A new one is a file here, with a class that derives from `Monitor`, and a line in MONITORS; a recipe asks for it by
`monitors.also = ["name"]`. A user's own needs no line: `monitors.also = ["package.module:Class"]`, or an object handed to
`cohort.train(monitors=[...])`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cohort.base.importing import NotImportable, load_function
from cohort.errors import CohortError, RecipeError
from cohort.observe.monitors.base import Monitor, Monitors, Watched, check_methods
from cohort.observe.monitors.jsonl import JsonlMonitor, read_rows
from cohort.recipe.schema import Recipe
from cohort.recipe.sections import MonitorsConfig, suggest_nearest

if TYPE_CHECKING:
    from cohort.observe.diagnosis.checks import FindingWatch

__all__ = [
    "MONITORS",
    "JsonlMonitor",
    "Monitor",
    "Monitors",
    "build_monitors",
    "drop_monitors",
    "find_monitor_problems",
    "read_rows",
]

MONITORS = {
    "tensorboard": "cohort.observe.monitors.trackers:TensorboardMonitor",
    "wandb": "cohort.observe.monitors.trackers:WandbMonitor",
    "trackio": "cohort.observe.monitors.trackers:TrackioMonitor",
    "console": "cohort.observe.monitors.console:ConsoleMonitor",
}
"""Monitors that a recipe can name, and where they lie: nothing is imported before a run asks for it. (jsonl always watches.)"""


@dataclass(frozen=True)
class Asked:
    """A monitor that a recipe asks for."""

    spec: str
    """Where it lies; a name without a colon is one that the table does not have."""
    asked: str
    """How the recipe asks for it: the beginning of a sentence."""
    off: str
    """How to do without it: the end of one."""

    def load(self) -> Any:
        """The class. One that cannot work here is a RecipeError."""
        if ":" not in self.spec:
            raise RecipeError(
                f"monitors.also: unknown monitor {self.spec!r}{suggest_nearest(self.spec, MONITORS) or '.'} "
                f'Built in: {", ".join(MONITORS)}. One of your own is written "package.module:Class".'
            )
        try:
            kind = load_function(self.spec)
        except NotImportable as problem:
            raise self.error(str(problem).rstrip(".")) from problem
        if missing := kind.missing() if hasattr(kind, "missing") else "":
            raise self.error(missing)
        return kind

    def build(self, run: Watched) -> Any:
        """The monitor. At the start somebody is still watching: what it raises is said now, rather than train unseen."""
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
        return RecipeError(f"{self.asked}, but {reason}, or {self.off}.")


def list_asked_monitors(settings: MonitorsConfig) -> Iterator[Asked]:
    """Those of the table in its order, each once, then the others in the recipe's."""
    for name, spec in MONITORS.items():
        if getattr(settings, name, False):
            yield Asked(spec, f"monitors.{name} = true", f"set monitors.{name} = false")
        elif name in settings.also:
            yield ask_by_name(name, spec)
    yield from (ask_by_name(name, name) for name in dict.fromkeys(settings.also) if name not in MONITORS)


def ask_by_name(name: str, spec: str) -> Asked:
    return Asked(spec, f"monitors.also names {name}", "take it out of monitors.also")


def build_monitors(
    recipe: Recipe, folder: str | Path, resume_step: int | None = None, handed_in: Sequence[Any] = ()
) -> Monitors:
    """The monitors that the recipe asks for. What they lack is a RecipeError here, before anything is spent.

    resume_step: the step of the checkpoint that the run goes on from; what was written of later ones is removed, since those steps
    will run again. handed_in: a user's objects, which watch beside them.
    """
    folder = Path(folder)
    jsonl = JsonlMonitor(folder)
    if resume_step is not None:
        jsonl.truncate_after(resume_step)
    run = Watched(recipe.model_copy(deep=True), folder, resume_step)
    asked = [asked.build(run) for asked in list_asked_monitors(recipe.monitors)]
    return Monitors([jsonl, *asked, *handed_in], watch=make_watch(recipe, jsonl))


def make_watch(recipe: Recipe, jsonl: JsonlMonitor) -> FindingWatch:
    """Who looks for findings in the run, with all that the run has written before."""
    from cohort.observe.diagnosis.checks import FindingWatch
    from cohort.observe.run_folder import read_known_functions

    plain = recipe.model_dump()
    own, _ = read_known_functions(jsonl.metrics.parent, plain)
    found = [row["name"] for row in read_rows(jsonl.events) if row.get("kind") == "finding" and "name" in row]
    return FindingWatch(plain, own, read_rows(jsonl.metrics), read_rows(jsonl.evaluations), found)


def find_monitor_problems(recipe: Recipe) -> list[str]:
    """Why monitors that the recipe asks for cannot work on this machine; nothing is started."""
    problems = []
    for asked in list_asked_monitors(recipe.monitors):
        try:
            asked.load()
        except RecipeError as problem:
            problems.append(str(problem))
    return problems


def drop_monitors(recipe: Recipe) -> Recipe:
    """The recipe without the monitors that it asks for."""
    off = {name: False for name in MONITORS if name in MonitorsConfig.model_fields}
    return recipe.model_copy(update={"monitors": recipe.monitors.model_copy(update={**off, "also": []})})
