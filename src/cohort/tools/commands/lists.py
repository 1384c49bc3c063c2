"""`cohort algorithms` and `cohort recipes`: lists of what is built in."""

from __future__ import annotations

from typing import Annotated

import typer

from cohort.tools.commands.options import complete_algorithm


def algorithms(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME", help="One: all its settings. Several: only the differences.", autocompletion=complete_algorithm
        ),
    ] = None,
) -> None:
    """List the algorithms and their settings.

    \b
    cohort algorithms             all algorithms, one per line
    cohort algorithms dapo        every setting of one
    cohort algorithms grpo dapo   the settings that differ
    """
    from cohort.recipe.describe import print_algorithms

    print_algorithms(names or [])


def recipes() -> None:
    """List the built-in recipes.

    \b
    cohort recipes    the names that cohort train and cohort doctor accept
    """
    from cohort.recipe.file import list_built_in

    for name, first_line in list_built_in().items():
        typer.echo(f"{name:24} {first_line}")
