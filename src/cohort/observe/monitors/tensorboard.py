"""TensorBoard events in the run folder: `tensorboard --logdir runs`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cohort.observe.monitors.base import Monitor, Watched, explain_not_installed


class TensorboardMonitor(Monitor):
    """purge_step: on resume, hide the events that an earlier process wrote at or after this step."""

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
    """`eval/<set>/<what>` of an evaluation. Evaluations reach this kind of monitor here alone, never twice through a row."""
    scalars = {}
    for name, numbers in evaluation["sets"].items():
        for what, number in numbers.items():
            value = number.get("value") if isinstance(number, Mapping) else number
            if isinstance(value, int | float):
                scalars[f"eval/{name}/{what}"] = float(value)
    return scalars
