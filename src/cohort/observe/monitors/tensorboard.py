"""TensorBoard events in the run folder: `tensorboard --logdir runs`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cohort.errors import RecipeError
from cohort.observe.monitors.base import Monitor


class TensorboardMonitor(Monitor):
    """purge_step: on resume, hide the events that an earlier process wrote at or after this step."""

    def __init__(self, folder: str | Path, purge_step: int | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as problem:
            raise RecipeError(
                "monitors.tensorboard = true, but the tensorboard package is not installed. Install it with "
                "`pip install 'cohort-rl[tensorboard]'`, or set monitors.tensorboard = false."
            ) from problem
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
    """`eval/<set>/<what>` of an evaluation. Evaluations reach this kind of monitor here alone, never twice through a row."""
    scalars = {}
    for name, numbers in evaluation["sets"].items():
        for what, number in numbers.items():
            value = number.get("value") if isinstance(number, Mapping) else number
            if isinstance(value, int | float):
                scalars[f"eval/{name}/{what}"] = float(value)
    return scalars
