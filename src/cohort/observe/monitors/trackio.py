"""Trackio: an experiment tracker that keeps its data on this machine, or in a Space of the hub (TRACKIO_SPACE_ID)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cohort.errors import RecipeError
from cohort.observe.monitors.base import Watched, not_installed
from cohort.observe.monitors.wandb import Tracker


class TrackioMonitor(Tracker):
    """One run per run folder, under its name: a resumed run goes on in the same place. `trackio show` opens the dashboard."""

    @classmethod
    def missing(cls) -> str:
        return not_installed("trackio", "trackio")

    @classmethod
    def for_run(cls, run: Watched) -> TrackioMonitor:
        settings = run.recipe.monitors
        return cls(run.folder, settings.wandb_project, run.recipe.model_dump(), settings.completions)

    def __init__(self, folder: str | Path, project: str, recipe: Mapping[str, Any], completions: bool = False) -> None:
        import trackio

        try:
            run = trackio.init(
                project=project, name=Path(folder).resolve().name, resume="allow", config=dict(recipe), embed=False
            )
        except Exception as problem:  # at the start somebody is still watching: say it now rather than train unseen
            raise RecipeError(
                f"Trackio could not be started ({problem}). Look at TRACKIO_SPACE_ID and TRACKIO_DIR"
            ) from problem
        super().__init__(run, completions)

    def table_of(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
        import trackio

        return trackio.Table(columns=list(columns), data=[list(row) for row in rows])
