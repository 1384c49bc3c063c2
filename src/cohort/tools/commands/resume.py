"""`cohort resume`: an interrupted run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cohort.tools.commands import EXIT_CODES


def resume(run: Annotated[Path, typer.Argument(help="A run folder.")]) -> int:
    """Go on with an interrupted run, exactly where it was."""
    from cohort.observe.run_folder import RunFolder
    from cohort.session import resume as resume_run

    result = resume_run(run)
    if result.status == "finished":
        typer.echo(f"{run} is finished: {result.folder / 'report.html'}")
        if advice := RunFolder.open(run).ignored_edit(result.summary):
            typer.echo(advice)
    return EXIT_CODES[result.status]
