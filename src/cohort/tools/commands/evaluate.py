"""`cohort evaluate` and `cohort compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cohort.tools.commands import EXIT_CODES
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
    recipe: Annotated[str, typer.Option(help="Recipe with the prompts and rewards (default: that of the run).")] = "",
    checkpoint: Checkpoint = "",
    set_: Annotated[list[str] | None, typer.Option("--set", help="Recipe setting, key=value; may be repeated.")] = None,
    output: Annotated[Path | None, typer.Option(help="Also write the numbers as JSON.")] = None,
) -> None:
    """Held-out pass@k, maj@k and greedy accuracy, with intervals.

    \b
    cohort evaluate runs/my-run                           the trained model
    cohort evaluate runs/my-run --checkpoint best --set evaluation.samples=16
    cohort evaluate path/to/a/model --recipe my.toml      a model without a run
    cohort evaluate runs/first runs/second                which one is better

    Several targets are compared in pairs, problem by problem, on the problems of the first.
    """
    from cohort.tools.evaluate import run_evaluation

    run_evaluation(targets, recipe, checkpoint, set_ or [], output)


def compare(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="[LABEL=]CONTENDER... [KEY=VALUE]...",
            help="Algorithms (grpo, dpo:data=start), recipe files or built-in recipes; then settings for all of them.",
        ),
    ],
    recipe: Annotated[str, typer.Option(help="Base recipe of the algorithms (default: column_addition).")] = "",
    seeds: Annotated[str, typer.Option(help="Comma-separated seeds; every contender runs with each.")] = "0",
    jobs: Annotated[int, typer.Option(help="Runs at a time.")] = 1,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the comparison (default: runs/compare-TIME); an existing one is resumed.")
    ] = None,
) -> int:
    """Compare algorithms or recipes: same budget, seeds and start.

    \b
    cohort compare grpo dr_grpo dapo            column addition with each
    cohort compare grpo loose=grpo:kl_coef=0    settings of one, after a colon
    cohort compare first=a.toml second=b.toml   your own recipes
    cohort compare grpo ppo --recipe my.toml --seeds 0,1,2 --jobs 2 num_steps=60
    """
    from cohort.tools.compare import run_compare

    return EXIT_CODES[run_compare(arguments, recipe, seeds, jobs, output)]
