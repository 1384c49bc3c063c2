"""`cohort train`: a recipe, or the demo, from beginning to end."""

from __future__ import annotations

from typing import Annotated

import typer

from cohort.tools.commands import EXIT_CODES
from cohort.tools.commands.options import complete_recipe_words


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE KEY=VALUE",
            help="A recipe file or built-in name, then overrides.",
            autocompletion=complete_recipe_words,
        ),
    ] = None,
) -> int:
    """Train a model by a recipe; without one, the built-in demo.

    \b
    cohort train                              the demo, on a CPU, no downloads
    cohort train num_steps=50 group_size=4    the demo with other words
    cohort train smollm2                      a real model (extra: smollm2)
    cohort train gsm8k_qwen model=PATH        a built-in one (see: cohort recipes)
    cohort train my.toml seed=1 name=second   a recipe of your own

    \b
    The least that my.toml must say (all words: docs/recipe.md):
      model.source = "path or hub id"
      prompts.source = "data.jsonl"              # rows with `prompt` and `answer`
      rewards = [{ function = "math_answer" }]   # or "my_module:my_function"
    """
    from cohort.recipe.built_in import find_recipe, split_words
    from cohort.recipe.words import describe_start
    from cohort.training.launch import is_main_process

    name, overrides = split_words(words or [])
    recipe = find_recipe(name, overrides)
    if (
        recipe.monitors.console and is_main_process()
    ):  # torch takes seconds to load, and a screen that stays empty looks like a fault
        typer.echo(describe_start(recipe))

    from cohort.session import start

    return EXIT_CODES[start(recipe).status]
