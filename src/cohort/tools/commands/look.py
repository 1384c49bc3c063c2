"""`cohort look`: its words; the work is done in cohort.tools.look."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cohort.tools.commands.options import complete_run


def look(
    run: Annotated[
        Path, typer.Argument(help="A run folder, of a run that is over or still trains.", autocompletion=complete_run)
    ],
    step: Annotated[int | None, typer.Option(help="The step; the last one that was kept unless named.")] = None,
    wrong: Annotated[bool, typer.Option("--wrong", help="Only completions that were judged wrong.")] = False,
    group: Annotated[int | None, typer.Option(help="Every completion of this group; a few groups unless named.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Texts are not shortened.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per completion, of all that are meant.")] = False,
) -> None:
    """Read what the policy wrote, with gold answers and rewards.

    \b
    cohort look runs/my-run                    best and worst, last step
    cohort look runs/my-run --step 1 --wrong   wrong completions of the first step
    cohort look runs/my-run --group 3 --full   all of one group, in full
    """
    from cohort.tools.look import run_look

    run_look(run, step, wrong, group, full, as_json)
