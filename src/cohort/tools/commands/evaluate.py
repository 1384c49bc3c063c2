"""`cohort evaluate`: its words; the work is done in cohort.tools.evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cohort.tools.commands.options import Checkpoint, complete_run


def evaluate(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN_OR_MODEL...",
            help="Run folders, model folders or hub ids; several are compared in pairs.",
            autocompletion=complete_run,
        ),
    ],
    recipe: Annotated[str, typer.Option(help="Recipe that names prompts and rewards; a run brings its own.")] = "",
    checkpoint: Checkpoint = "",
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override of the recipe, key=value; may be repeated.")] = None,
    output: Annotated[Path | None, typer.Option(help="Also write the numbers as JSON.")] = None,
) -> None:
    """Held-out pass@k, maj@k and greedy, with intervals.

    \b
    cohort evaluate runs/my-run                           the trained model
    cohort evaluate runs/my-run --checkpoint best --set evaluation.samples=16
    cohort evaluate path/to/a/model --recipe my.toml      a model without a run
    cohort evaluate runs/first runs/second                which one is better

    Several targets are compared in pairs, problem by problem, on the problems of the first.
    """
    from cohort.tools.evaluate import run_evaluation

    run_evaluation(targets, recipe, checkpoint, set_ or [], output)
