"""`cohort train`: a recipe, or the demo, from beginning to end."""

from __future__ import annotations

from typing import Annotated

import typer

from cohort.tools.commands import EXIT_CODES


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="RECIPE KEY=VALUE", help="A recipe file or built-in name, then overrides."),
    ] = None,
) -> int:
    """Train. Without a recipe: the built-in demo, on a CPU, with nothing downloaded.

    \b
    cohort train                                    the demo
    cohort train group_size=4 num_steps=50          the demo with other words
    cohort train gsm8k_qwen model=path/to/a/model   a built-in recipe (see: cohort recipes)
    cohort train my.toml seed=1 name=second         a recipe of your own (all words: docs/recipe.md)
    """
    from cohort.recipe.built_in import find_recipe, split_words
    from cohort.recipe.words import describe_start
    from cohort.training.agreement import speaks_to_people

    name, overrides = split_words(words or [])
    recipe = find_recipe(name, overrides)
    if (
        recipe.monitors.console and speaks_to_people()
    ):  # torch takes seconds to load, and a screen that stays empty looks like a fault
        typer.echo(describe_start(recipe))

    from cohort.session import start

    return EXIT_CODES[start(recipe).status]
