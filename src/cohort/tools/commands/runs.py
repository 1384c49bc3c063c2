"""`cohort look`, `cohort report`, `cohort dashboard` and `cohort export`: commands that read run folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cohort.tools.commands.options import Checkpoint, Host, complete_run


def look(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder; the run may still be training.", autocompletion=complete_run)
    ],
    step: Annotated[int | None, typer.Option(help="Step to show (default: the last one saved).")] = None,
    wrong: Annotated[bool, typer.Option("--wrong", help="Show only wrong completions.")] = False,
    group: Annotated[int | None, typer.Option(help="Show all completions of this group (default: a few groups).")] = None,
    full: Annotated[bool, typer.Option("--full", help="Do not shorten texts.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per selected completion.")] = False,
) -> None:
    """Read completions, with their reference answers and rewards.

    \b
    cohort look runs/my-run                    best and worst, last step
    cohort look runs/my-run --step 1 --wrong   wrong completions of the first step
    cohort look runs/my-run --group 3 --full   one whole group, not shortened
    """
    from cohort.tools.look import run_look

    run_look(run, step, wrong, group, full, as_json)


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="A run folder; several share one page.", autocompletion=complete_run),
    ],
    output: Annotated[Path | None, typer.Option(help="Page to write for several runs (default: runs.html).")] = None,
) -> None:
    """Write a run's report.html again, or one page for several runs.

    \b
    cohort report runs/my-run               its report.html, finished or not
    cohort report runs/first runs/second    runs.html, with overlaid curves
    """
    from cohort.errors import RunError
    from cohort.observe.report.overlay import write_overlay
    from cohort.observe.report.page import write_report
    from cohort.observe.run_folder import RunFolder

    folders = [RunFolder.open(run).root for run in runs]
    if len(folders) > 1:
        typer.echo(str(write_overlay(folders, output or Path("runs.html"))))
    elif output:
        raise RunError("--output: the report of a single run is its own report.html; leave the option out.")
    else:
        typer.echo(str(write_report(folders[0])))


def dashboard(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUNS]...", help="Run folders, or folders of runs (default: ./runs).", autocompletion=complete_run
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")] = 8600,
    host: Host = "127.0.0.1",
    public: Annotated[
        bool, typer.Option("--public", help="Allow an address that other machines can reach; it requires a token.")
    ] = False,
) -> None:
    """Watch runs in a browser, during training and afterwards.

    \b
    cohort dashboard                           all of ./runs, at 127.0.0.1:8600
    cohort dashboard runs/first runs/second    only these two
    cohort dashboard --host 0.0.0.0 --public   for other machines, with a token

    Shows curves, findings, groups, tokens, and the lab. It only reads run folders.
    """
    from cohort.tools.dashboard.command import run_dashboard

    run_dashboard(runs or [], host, port, public)


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, finished or not.", autocompletion=complete_run)],
    out: Annotated[Path | None, typer.Argument(metavar="[OUT]", help="Model folder to write; optional with --push.")] = None,
    checkpoint: Checkpoint = "",
    adapter: Annotated[bool, typer.Option("--adapter", help="LoRA runs: write only the adapter, not merged weights.")] = False,
    push: Annotated[str, typer.Option(metavar="OWNER/NAME", help="Also upload to this private repository of the hub.")] = "",
    public: Annotated[bool, typer.Option("--public", help="With --push: make the repository public.")] = False,
) -> None:
    """Write a run's model as a folder that transformers loads.

    \b
    cohort export runs/my-run out                     the final weights
    cohort export runs/my-run out --checkpoint best   the best checkpoint
    cohort export runs/my-run out --adapter           the adapter of a LoRA run
    """
    from cohort.tools.export import run_export

    for line in run_export(run, out, checkpoint, adapter, push, public):
        typer.echo(line)
