"""Weights & Biases. Metrics and the recipe are sent; completions only where monitors.completions says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cohort.errors import RecipeError
from cohort.observe.monitors.base import Monitor, Watched, not_installed
from cohort.observe.monitors.tensorboard import evaluation_scalars

ROWS_SENT = 64
"""Completions of a table at most: whole groups from the first on; all of them are in rollouts/."""
COLUMNS = ("step", "group", "prompt", "completion", "reward", "success", "extracted", "gold", "advantage", "end")


class Tracker(Monitor):
    """A service with runs, scalars and tables. Subclasses start it, and make its tables."""

    def __init__(self, run: Any, completions: bool = False) -> None:
        self.run, self.completions = run, completions

    def table_of(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
        """The service's own table."""
        raise NotImplementedError

    def on_metrics(self, row: Mapping[str, Any]) -> None:
        self.log({name: value for name, value in row.items() if not name.startswith("eval/")}, int(row["step"]))

    def on_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        self.log(evaluation_scalars(evaluation), int(evaluation["step"]))

    def on_rollouts(self, step: int, rollouts: Sequence[Mapping[str, Any]]) -> None:
        if self.completions and rollouts:
            columns, rows = completion_table(rollouts)
            self.run.log({"completions": self.table_of(columns, rows)}, step=step)

    def log(self, scalars: Mapping[str, Any], step: int) -> None:
        numbers = {name: v for name, v in scalars.items() if name != "step" and isinstance(v, int | float)}
        self.run.log(numbers, step=step)

    def close(self) -> None:
        self.run.finish()


class WandbMonitor(Tracker):
    """One wandb run per run folder: the folder's name is its id, so that a resumed run goes on in the same place."""

    @classmethod
    def missing(cls) -> str:
        return not_installed("wandb", "wandb")

    @classmethod
    def for_run(cls, run: Watched) -> WandbMonitor:
        settings = run.recipe.monitors
        return cls(run.folder, settings.wandb_project, run.recipe.model_dump(), settings.completions)

    def __init__(self, folder: str | Path, project: str, recipe: Mapping[str, Any], completions: bool = False) -> None:
        import wandb

        name = Path(folder).resolve().name
        try:
            run = wandb.init(project=project, name=name, id=name, resume="allow", dir=str(folder), config=dict(recipe))
        except Exception as problem:  # at the start somebody is still watching: say it now rather than train unseen
            raise RecipeError(
                f"Weights & Biases could not be started ({problem}). Log in with `wandb login`, set WANDB_MODE=offline"
            ) from problem
        super().__init__(run, completions)

    def table_of(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
        import wandb

        return wandb.Table(columns=list(columns), data=[list(row) for row in rows])

    def on_finish(self, summary: Mapping[str, Any]) -> None:
        self.run.summary.update({"status": summary.get("status"), "eval": summary.get("eval", {})})


def completion_table(rollouts: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """(columns, rows) of the first groups of a step: text, rewards and verdicts, each part of the reward by its name."""
    groups = list(dict.fromkeys(row.get("group") for row in rollouts))
    shown: list[Mapping[str, Any]] = []
    for group in groups:
        members = [row for row in rollouts if row.get("group") == group]
        if shown and len(shown) + len(members) > ROWS_SENT:
            break
        shown += members
    parts = sorted({name for row in shown for name in row if name.startswith("reward/")})
    columns = [*COLUMNS, *parts]
    return columns, [[row.get(name) for name in columns] for row in shown]
