"""`cohort algorithms`: what there is to choose from."""

from __future__ import annotations

from typing import Annotated

import typer


def algorithms(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="One: all its choices. Several: what differs.")
    ] = None,
) -> None:
    """List the algorithms and the choices they are made of."""
    from cohort.recipe.words import print_algorithms

    print_algorithms(names or [])
