"""`cohort report`: the page of a run, written again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(run: Annotated[Path, typer.Argument(help="A run folder.")]) -> None:
    """Write a run's report.html, finished or not."""
    from cohort.observe.report import write_report
    from cohort.observe.run_folder import RunFolder

    typer.echo(str(write_report(RunFolder.open(run).root)))
