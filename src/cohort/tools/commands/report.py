"""`cohort report`: the page of a run, written again; or one page of several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cohort.tools.commands.options import complete_run


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="A run folder; several are laid over each other in one page.",
            autocompletion=complete_run,
        ),
    ],
    output: Annotated[Path | None, typer.Option(help="Of several runs: the page to write; by default runs.html, here.")] = None,
) -> None:
    """Write a run's report.html again; of several runs, one page.

    \b
    cohort report runs/my-run               its report.html, finished or not
    cohort report runs/first runs/second    runs.html: one over the other
    """
    from cohort.errors import RunError
    from cohort.observe.report import write_overlay, write_report
    from cohort.observe.run_folder import RunFolder

    folders = [RunFolder.open(run).root for run in runs]
    if len(folders) > 1:
        typer.echo(str(write_overlay(folders, output or Path("runs.html"))))
    elif output:
        raise RunError("--output: the report of one run is its own report.html; leave the option out.")
    else:
        typer.echo(str(write_report(folders[0])))
