"""Experiment trackers: TensorBoard, Weights & Biases, and Trackio, which keeps its data on this machine or in a Hugging Face Space.

W&B and Trackio get metrics and the recipe, and completions only with monitors.completions. Their run has the name of the run folder, so that
a resumed run continues there.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cohort.errors import RecipeError
from cohort.observe.monitors.base import Monitor, Watched, explain_not_installed

ROWS_SENT = 64
"""Completions per table; all completions are in rollouts/."""
COLUMNS = ("step", "group", "prompt", "completion", "reward", "success", "extracted", "reference_answer", "advantage", "end")


class Tracker(Monitor):
    """A service with runs, scalars and tables; W&B and Trackio have the same calls. Subclasses name it and start its runs."""

    package: str
    title: str
    advice: str
    """What to check if it cannot be started: the end of a sentence."""

    @classmethod
    def missing(cls) -> str:
        return explain_not_installed(cls.package, cls.package)

    @classmethod
    def for_run(cls, run: Watched) -> Tracker:
        settings = run.recipe.monitors
        return cls(run.folder, settings.wandb_project, run.recipe.model_dump(), settings.completions)

    def __init__(self, folder: str | Path, project: str, recipe: Mapping[str, Any], completions: bool = False) -> None:
        self.service = importlib.import_module(self.package)
        self.completions = completions
        try:
            self.run = self.start_run(Path(folder), project=project, config=dict(recipe), resume="allow")
        except Exception as problem:  # stop the run at its start, rather than train unobserved
            raise RecipeError(f"{self.title} could not be started ({problem}). {self.advice}") from problem

    def start_run(self, folder: Path, **settings: Any) -> Any:
        """The run of the service, with `log` and `finish`."""
        raise NotImplementedError

    def on_metrics(self, row: Mapping[str, Any]) -> None:
        self.log_numbers({name: value for name, value in row.items() if not name.startswith("eval/")}, int(row["step"]))

    def on_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        self.log_numbers(evaluation_scalars(evaluation), int(evaluation["step"]))

    def on_rollouts(self, step: int, rollouts: Sequence[Mapping[str, Any]]) -> None:
        if self.completions and rollouts:
            columns, rows = make_completion_table(rollouts)
            self.run.log({"completions": self.service.Table(columns=columns, data=rows)}, step=step)

    def log_numbers(self, scalars: Mapping[str, Any], step: int) -> None:
        numbers = {name: v for name, v in scalars.items() if name != "step" and isinstance(v, int | float)}
        self.run.log(numbers, step=step)

    def close(self) -> None:
        self.run.finish()


class WandbMonitor(Tracker):
    """Weights & Biases: one run per run folder, with the folder name as its id."""

    package, title = "wandb", "Weights & Biases"
    advice = "Log in with `wandb login`, set WANDB_MODE=offline"

    def start_run(self, folder: Path, **settings: Any) -> Any:
        name = folder.resolve().name
        return self.service.init(name=name, id=name, dir=str(folder), **settings)

    def on_finish(self, summary: Mapping[str, Any]) -> None:
        self.run.summary.update({"status": summary.get("status"), "eval": summary.get("eval", {})})


class TrackioMonitor(Tracker):
    """Trackio: `trackio show` opens its dashboard; TRACKIO_SPACE_ID selects a Hugging Face Space."""

    package, title = "trackio", "Trackio"
    advice = "Check TRACKIO_SPACE_ID and TRACKIO_DIR"

    def start_run(self, folder: Path, **settings: Any) -> Any:
        return self.service.init(name=folder.resolve().name, embed=False, **settings)


def make_completion_table(rollouts: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """(columns, rows) for the first completions of a step: texts, rewards with their parts, and verdicts."""
    shown = rollouts[:ROWS_SENT]
    parts = sorted({name for row in shown for name in row if name.startswith("reward/")})
    columns = [*COLUMNS, *parts]
    return columns, [[row.get(name) for name in columns] for row in shown]


class TensorboardMonitor(Monitor):
    """TensorBoard events in the run folder: `tensorboard --logdir runs`. purge_step: hides events of an earlier process from this step on."""

    @classmethod
    def missing(cls) -> str:
        return explain_not_installed("torch.utils.tensorboard", "tensorboard")

    @classmethod
    def for_run(cls, run: Watched) -> TensorboardMonitor:
        return cls(run.folder / "tensorboard", purge_step=None if run.resume_step is None else run.resume_step + 1)

    def __init__(self, folder: str | Path, purge_step: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder), purge_step=purge_step)

    def on_metrics(self, row: Mapping[str, Any]) -> None:
        self.write({name: value for name, value in row.items() if not name.startswith("eval/")}, int(row["step"]))

    def on_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        self.write(evaluation_scalars(evaluation), int(evaluation["step"]))

    def write(self, scalars: Mapping[str, Any], step: int) -> None:
        for name, value in scalars.items():
            if name != "step" and isinstance(value, int | float):
                self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


def evaluation_scalars(evaluation: Mapping[str, Any]) -> dict[str, float]:
    """The results of an evaluation as `eval/<set>/<measure>`; the metric row's own eval/ values are not sent."""
    scalars = {}
    for name, numbers in evaluation["sets"].items():
        for what, number in numbers.items():
            value = number.get("value") if isinstance(number, Mapping) else number
            if isinstance(value, int | float):
                scalars[f"eval/{name}/{what}"] = float(value)
    return scalars
