"""`cohort doctor`: its words; the work is done in cohort.tools.doctor."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from cohort.tools.commands.options import complete_recipe_words


def doctor(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE KEY=VALUE",
            help="As for train; or the folder of a run, whose steps were measured.",
            autocompletion=complete_recipe_words,
        ),
    ] = None,
    ranks: Annotated[
        int, typer.Option(min=0, help="Predict memory, seconds and tokens of a step on up to so many GPUs (or CPU hosts).")
    ] = 0,
    gbit: Annotated[
        float, typer.Option(min=0.001, help="Gbit/s of a host's network, for --ranks over more than one host.")
    ] = 400.0,
) -> int:
    """Look a recipe over before a night is spent on it.

    \b
    cohort doctor my.toml             answers, lengths, success, memory, step 1
    cohort doctor my.toml --ranks 8   also memory and speed on each of 8 ranks
    cohort doctor runs/a --ranks 8    the same, from the steps that a run measured
    torchrun --nproc-per-node 8 -m cohort doctor my.toml   also how fast they talk
    """
    from cohort.recipe.file import find_recipe, split_arguments

    name, overrides = split_arguments(words or [])
    recipe = find_recipe(name, overrides)
    if os.environ.get("RANK", "0") == "0":
        typer.echo("looking the recipe over; loading ...")

    from cohort.tools.doctor import run_doctor

    return 0 if run_doctor(recipe, name, ranks, gbit) else 1
