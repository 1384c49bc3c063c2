"""`cohort doctor`: its words; the work is done in cohort.tools.doctor."""

from __future__ import annotations

from typing import Annotated

import typer


def doctor(
    words: Annotated[list[str] | None, typer.Argument(metavar="RECIPE KEY=VALUE", help="As for train.")] = None,
) -> int:
    """Look a recipe over before a night is spent on it.

    Golds and shuffled golds, sampling, lengths, truncation, success rate, memory, and the invariants of step 1.
    """
    from cohort.recipe.built_in import find_recipe, split_words

    name, overrides = split_words(words or [])
    recipe = find_recipe(name, overrides)
    typer.echo("looking the recipe over; loading ...")

    from cohort.tools.doctor import run_doctor

    return 0 if run_doctor(recipe) else 1
