"""Who watches a run: console (progress), jsonl (source of truth), tensorboard, wandb. None of them can stop it.

with build_monitors(recipe, folder, resume_step=None) as monitors:
    monitors.on_stage("training", total=recipe.train.num_steps)
    ...
        monitors.on_metrics(row)          # once per step; {"step": 12, "reward/mean": ...}
    monitors.on_finish(summary)
"""

from __future__ import annotations

from pathlib import Path

from cohort.observe.monitors.base import Monitor, Monitors
from cohort.observe.monitors.jsonl import JsonlMonitor, read_rows
from cohort.recipe.schema import Recipe

__all__ = ["JsonlMonitor", "Monitor", "Monitors", "build_monitors", "read_rows"]


def build_monitors(recipe: Recipe, folder: str | Path, resume_step: int | None = None) -> Monitors:
    """The monitors that the recipe asks for. A package that is missing is a RecipeError here, before anything is spent.

    resume_step: the step of the checkpoint that the run goes on from; rows after it are removed from metrics.jsonl and
    evaluations.jsonl, since those steps will run again.
    """
    folder = Path(folder)
    jsonl = JsonlMonitor(folder)
    if resume_step is not None:
        jsonl.truncate_after(resume_step)
    monitors: list[Monitor] = [jsonl]
    settings = recipe.monitors
    if settings.tensorboard:
        from cohort.observe.monitors.tensorboard import TensorboardMonitor

        monitors.append(TensorboardMonitor(folder / "tensorboard", purge_step=None if resume_step is None else resume_step + 1))
    if settings.wandb:
        from cohort.observe.monitors.wandb import WandbMonitor

        monitors.append(WandbMonitor(folder, settings.wandb_project, recipe.model_dump()))
    if settings.console:
        from cohort.observe.monitors.console import ConsoleMonitor

        monitors.append(ConsoleMonitor(folder, recipe.model_dump(), rows=read_rows(folder / "metrics.jsonl")))
    return Monitors(monitors)
