"""`cohort compare`: its words; the work is done in cohort.tools.compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cohort.tools.commands import EXIT_CODES


def compare(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[LABEL=]CONTENDER... KEY=VALUE",
            help="Algorithms (grpo, dpo:data=start), recipe files or built-in recipes; then overrides for all of them.",
        ),
    ],
    recipe: Annotated[str, typer.Option(help="The recipe that algorithms are put into; without it: the demo.")] = "",
    seeds: Annotated[str, typer.Option(help="Seeds, with commas; every contender is run with each.")] = "0",
    jobs: Annotated[int, typer.Option(help="Runs at a time.")] = 1,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the comparison; runs/compare-TIME unless named. Named again, it goes on.")
    ] = None,
) -> int:
    """Compare algorithms or recipes: same budget, seeds and start.

    \b
    cohort compare grpo dr_grpo dapo            the demo with each algorithm
    cohort compare grpo loose=grpo:kl_coef=0    choices of one, after a colon
    cohort compare first=a.toml second=b.toml   recipes of your own
    cohort compare grpo ppo --recipe my.toml --seeds 0,1,2 --jobs 2 num_steps=60
    """
    from cohort.tools.compare import run_compare

    return EXIT_CODES[run_compare(words, recipe, seeds, jobs, output)]
