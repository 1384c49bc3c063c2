"""`cohort export`: its words; the work is done in cohort.tools.export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cohort.tools.commands.options import Checkpoint, complete_run


def export(
    run: Annotated[Path, typer.Argument(help="A run folder, finished or not.", autocompletion=complete_run)],
    out: Annotated[Path | None, typer.Argument(help="The model folder to write; with --push it may be left out.")] = None,
    checkpoint: Checkpoint = "",
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Of a LoRA run: the adapter alone, and not merged weights.")
    ] = False,
    push: Annotated[str, typer.Option(metavar="OWNER/NAME", help="Also upload to this repository of the hub; private.")] = "",
    public: Annotated[bool, typer.Option("--public", help="With --push: a repository that everybody can read.")] = False,
) -> None:
    """Write a run's model as a folder that transformers loads.

    \b
    cohort export runs/my-run out                     the weights at the end
    cohort export runs/my-run out --checkpoint best   a checkpoint on the way
    cohort export runs/my-run out --adapter           of a LoRA run: the adapter
    """
    from cohort.tools.export import run_export

    for line in run_export(run, out, checkpoint, adapter, push, public):
        typer.echo(line)
