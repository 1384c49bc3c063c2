"""`cohort resume`: an interrupted run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cohort.tools.commands import EXIT_CODES
from cohort.tools.commands.options import complete_run


def resume(run: Annotated[Path, typer.Argument(help="A run folder.", autocompletion=complete_run)]) -> int:
    """Go on with an interrupted run, exactly where it was.

    \b
    cohort resume runs/my-run    after Ctrl-C, a crash or a power cut
    """
    from cohort.training.launch import is_main_process

    if has_console(run) and is_main_process():
        typer.echo(f"resuming {run}; loading ...")

    from cohort.observe.run_folder import RunFolder
    from cohort.session import resume as resume_run

    result = resume_run(run)
    if result.status == "finished" and is_main_process():
        typer.echo(f"{run} is finished: {result.folder / 'report.html'}")
        if advice := RunFolder.open(result.folder).describe_ignored_edit(result.summary):
            typer.echo(advice)
    return EXIT_CODES[result.status]


def has_console(run: Path) -> bool:
    """Whether the run's recipe wants to be heard; read without loading what a run needs."""
    import tomllib

    try:
        recipe = tomllib.loads((run / "recipe.toml").read_text(encoding="utf-8"))
        return bool(recipe.get("monitors", {}).get("console", True))
    except (OSError, ValueError, AttributeError):  # what is wrong with it is said by who needs it
        return False
