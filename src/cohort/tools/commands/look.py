"""`cohort look`: its words; the work is done in cohort.tools.look."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def look(
    run: Annotated[Path, typer.Argument(help="A run folder, of a run that is over or still trains.")],
    step: Annotated[int | None, typer.Option(help="The step; the last one that was kept unless named.")] = None,
    wrong: Annotated[bool, typer.Option("--wrong", help="Only completions that were judged wrong.")] = False,
    group: Annotated[int | None, typer.Option(help="Every completion of this group; a few groups unless named.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Texts are not shortened.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per completion, of all that are meant.")] = False,
) -> None:
    """Read what the policy wrote: prompt, gold answer, completions with their rewards and what was extracted.

    \b
    cohort look runs/my-run                    best and worst of a few groups of the last step
    cohort look runs/my-run --step 1 --wrong   wrong completions of the first step
    cohort look runs/my-run --group 3 --full   all completions of one group, in full
    """
    from cohort.tools.look import run_look

    run_look(run, step, wrong, group, full, as_json)
