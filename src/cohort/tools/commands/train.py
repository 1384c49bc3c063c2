"""`cohort train` and `cohort resume`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cohort.tools.commands import EXIT_CODES
from cohort.tools.commands.options import RecipeArguments, complete_run


def train(arguments: RecipeArguments = None) -> int:
    """Train a model with a recipe; without one, run the built-in demo.

    \b
    cohort train                              the demo, on a CPU, no downloads
    cohort train num_steps=50 group_size=4    the demo with other settings
    cohort train smollm2                      a real model (extra: smollm2)
    cohort train gsm8k_qwen model=PATH        a built-in one (see: cohort recipes)
    cohort train my.toml seed=1 name=second   your own recipe

    \b
    The minimum for my.toml (all keys: docs/recipe.md):
      model.source = "path or hub id"
      prompts.source = "data.jsonl"              # rows with `prompt` and `answer`
      rewards = [{ function = "math_answer" }]   # or "my_module:my_function"
    """
    from cohort.recipe.describe import describe_start
    from cohort.recipe.file import find_recipe, split_arguments
    from cohort.training.agreement import speaks_to_people

    recipe = find_recipe(*split_arguments(arguments or []))
    if recipe.monitors.console and speaks_to_people():  # importing torch takes seconds, and an empty screen looks like a fault
        typer.echo(describe_start(recipe))

    from cohort.session import start

    return EXIT_CODES[start(recipe).status]


def resume(run: Annotated[Path, typer.Argument(help="A run folder.", autocompletion=complete_run)]) -> int:
    """Resume an interrupted run exactly where it stopped.

    \b
    cohort resume runs/my-run    after Ctrl-C, a crash or a power cut
    """
    from cohort.training.agreement import speaks_to_people

    if has_console(run) and speaks_to_people():
        typer.echo(f"resuming {run}; loading ...")

    from cohort.observe.run_folder import RunFolder
    from cohort.session import resume as resume_run

    result = resume_run(run)
    if result.status == "finished" and speaks_to_people():
        typer.echo(f"{run} is finished: {result.folder / 'report.html'}")
        if advice := RunFolder.open(result.folder).describe_ignored_edit(result.summary):
            typer.echo(advice)
    return EXIT_CODES[result.status]


def has_console(run: Path) -> bool:
    """Whether the run's recipe has the console on, read without importing what a run needs."""
    import tomllib

    try:
        recipe = tomllib.loads((run / "recipe.toml").read_text(encoding="utf-8"))
        return bool(recipe.get("monitors", {}).get("console", True))
    except (OSError, ValueError, AttributeError):  # reported when the run is opened
        return False
