"""`cohort recipes`, `algorithms`, `doctor` and `audit`: commands before a training run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cohort.tools.commands.options import RecipeArguments, complete_algorithm


def algorithms(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="One: all its settings. Several: only the differences.", autocompletion=complete_algorithm
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
    from rich.console import Console

    from cohort.observe.terminal import print_whole
    from cohort.recipe.file import list_built_in

    for name, first_line in list_built_in().items():
        print_whole(Console(highlight=False), f"{name:24} {first_line}", indent=25)


def doctor(
    arguments: RecipeArguments = None,
    ranks: Annotated[int, typer.Option(min=0, help="Also predict the memory of each rank on up to this many ranks.")] = 0,
) -> int:
    """Check a recipe before an overnight run.

    \b
    cohort doctor my.toml             answers, lengths, success, memory, step 1
    cohort doctor my.toml --ranks 8   also memory per rank on 1, 2, 4 and 8 ranks
    torchrun --nproc-per-node 8 -m cohort doctor my.toml   also hosts and link
    """
    from cohort.recipe.file import find_recipe, split_arguments

    recipe = find_recipe(*split_arguments(arguments or []))
    if os.environ.get("RANK", "0") == "0":
        typer.echo("checking the recipe; loading ...")

    from cohort.tools.doctor import run_doctor

    return 0 if run_doctor(recipe, ranks) else 1


def audit(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="REWARD [KEY=VALUE]...", help="A built-in reward, package.module:function or a recipe; then arguments."
        ),
    ],
    rows: Annotated[str | None, typer.Option(help="Rows to audit with: a file, or any value of prompts.source.")] = None,
    reference: Annotated[str | None, typer.Option(help="Column of the reference answer (default: `answer`).")] = None,
    prompt: Annotated[str | None, typer.Option(help="Column of the prompt (default: `prompt`).")] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", help="PARAMETER=COLUMN: fill a parameter from another column; may be repeated."),
    ] = None,
    template: Annotated[str | None, typer.Option(help="A completion that the reward accepts, with {answer} in it.")] = None,
    kind: Annotated[
        str | None, typer.Option(help="math, exact, code or shape (default: from the reward and its rows).")
    ] = None,
    shape: Annotated[bool | None, typer.Option("--shape", help="The reward judges only the format, not the answer.")] = None,
    threshold: Annotated[float | None, typer.Option(help="Lowest score of a success (default: 0.5).")] = None,
    timeout_s: Annotated[float | None, typer.Option("--timeout", help="Seconds allowed per completion (default: 10).")] = None,
    limit: Annotated[int | None, typer.Option(help="Number of rows to use (default: 8 if they are yours).")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the findings as JSON.")] = None,
) -> int:
    """Test a reward function for exploits before training.

    \b
    cohort audit math_answer                            a built-in reward
    cohort audit my_rewards:correct --rows data.jsonl   your own, with your rows
    cohort audit my.toml                                every reward of a recipe

    Exit code 0: no flaws found, 1: flaws found, 2: could not audit.
    """
    given = {option: value for option, value in locals().items() if option != "arguments" and value is not None}
    from cohort.tools.audit.command import run_audit

    return run_audit(arguments, **given)
