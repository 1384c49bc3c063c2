"""`cohort recipes`: what comes with Cohort."""

from __future__ import annotations

import typer


def recipes() -> None:
    """List the built-in recipes.

    \b
    cohort recipes    each is a name that cohort train and cohort doctor take
    """
    from cohort.recipe.file import list_built_in

    for name, first_line in list_built_in().items():
        typer.echo(f"{name:24} {first_line}")
