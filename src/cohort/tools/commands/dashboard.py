"""`cohort dashboard`: its words; the work is done in cohort.tools.dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cohort.tools.commands.options import complete_run


def dashboard(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUNS]...", help="Run folders, or folders of runs; ./runs unless named.", autocompletion=complete_run
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 takes a free one.")] = 8600,
    host: Annotated[str, typer.Option(help="The address to listen on; without one this machine alone is heard.")] = "127.0.0.1",
    public: Annotated[
        bool, typer.Option("--public", help="Allow an address that other machines reach; a token is then asked for.")
    ] = False,
) -> None:
    """Look at runs in a browser, while they train and afterwards.

    \b
    cohort dashboard                           those of ./runs, at 127.0.0.1:8600
    cohort dashboard runs/first runs/second    these two
    cohort dashboard --host 0.0.0.0 --public   for other machines, with a token

    Curves, findings, groups, tokens, and the lab. It reads run folders and changes nothing.
    """
    from cohort.tools.dashboard.command import run_dashboard

    run_dashboard(runs or [], host, port, public)
