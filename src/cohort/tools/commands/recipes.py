"""`cohort recipes`: what comes with Cohort."""

from __future__ import annotations

import typer


def recipes() -> None:
    """List the built-in recipes.

    \b
    cohort recipes    each is a name that cohort train and cohort doctor take
    """
    from cohort.recipe.built_in import built_in

    for name, first_line in built_in().items():
        typer.echo(f"{name:24} {first_line}")
