"""`cohort algorithms`: what there is to choose from."""

from __future__ import annotations

from typing import Annotated

import typer

from cohort.tools.commands.options import complete_algorithm


def algorithms(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="One: all its choices. Several: what differs.", autocompletion=complete_algorithm),
    ] = None,
) -> None:
    """List the algorithms and the choices they are made of.

    \b
    cohort algorithms             all of them, a line each
    cohort algorithms dapo        every choice of one
    cohort algorithms grpo dapo   what differs
    """
    from cohort.recipe.describe import print_algorithms

    print_algorithms(names or [])
