"""`cohort doctor`: its words; the work is done in cohort.tools.doctor."""

from __future__ import annotations

import os
from typing import Annotated

import typer


def doctor(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="RECIPE KEY=VALUE", help="As for train; or the folder of a run, whose steps were measured."),
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
    cohort doctor my.toml               golds, sampling, lengths, success rate, memory, and the invariants of step 1
    cohort doctor my.toml --ranks 8     also what each of 8 ranks would hold, and how fast a step would be
    cohort doctor runs/a --ranks 8      the same from the steps that a run on one rank has measured
    torchrun --nproc-per-node 8 -m cohort doctor my.toml     also the processes themselves, and how fast they talk
    """
    from cohort.recipe.built_in import find_recipe, split_words

    name, overrides = split_words(words or [])
    recipe = find_recipe(name, overrides)
    if os.environ.get("RANK", "0") == "0":
        typer.echo("looking the recipe over; loading ...")

    from cohort.tools.doctor import run_doctor

    return 0 if run_doctor(recipe, name, ranks, gbit) else 1
