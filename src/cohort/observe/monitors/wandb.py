"""Weights & Biases. Metrics and the recipe are sent; completions never are: they stay in the run folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cohort.errors import RecipeError
from cohort.observe.monitors.base import Monitor, Watched, not_installed
from cohort.observe.monitors.tensorboard import evaluation_scalars


class WandbMonitor(Monitor):
    """One wandb run per run folder: the folder's name is its id, so that a resumed run goes on in the same place."""

    @classmethod
    def missing(cls) -> str:
        return not_installed("wandb", "wandb")

    @classmethod
    def for_run(cls, run: Watched) -> WandbMonitor:
        return cls(run.folder, run.recipe.monitors.wandb_project, run.recipe.model_dump())

    def __init__(self, folder: str | Path, project: str, recipe: Mapping[str, Any]) -> None:
        import wandb

        name = Path(folder).resolve().name
        try:
            self.run = wandb.init(project=project, name=name, id=name, resume="allow", dir=str(folder), config=dict(recipe))
        except Exception as problem:  # at the start somebody is still watching: say it now rather than train unseen
            raise RecipeError(
                f"Weights & Biases could not be started ({problem}). Log in with `wandb login`, set WANDB_MODE=offline"
            ) from problem

    def on_metrics(self, row: Mapping[str, Any]) -> None:
        self.log({name: value for name, value in row.items() if not name.startswith("eval/")}, int(row["step"]))

    def on_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        self.log(evaluation_scalars(evaluation), int(evaluation["step"]))

    def log(self, scalars: Mapping[str, Any], step: int) -> None:
        numbers = {name: v for name, v in scalars.items() if name != "step" and isinstance(v, int | float)}
        self.run.log(numbers, step=step)

    def on_finish(self, summary: Mapping[str, Any]) -> None:
        self.run.summary.update({"status": summary.get("status"), "eval": summary.get("eval", {})})

    def close(self) -> None:
        self.run.finish()
