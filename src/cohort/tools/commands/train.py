"""`cohort train`, `resume` and `serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cohort.tools.commands import EXIT_CODES
from cohort.tools.commands.options import Host, RecipeArguments, complete_recipe_words, complete_run


def train(arguments: RecipeArguments = None) -> int:
    """Train a model with a recipe; without one, learn column addition.

    \b
    cohort train smollm2                      a real model, on a CPU
    cohort train                              a tiny model learns addition
    cohort train num_steps=50 group_size=4    the same with other settings
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
    from cohort.training.launch import is_main_process

    recipe = find_recipe(*split_arguments(arguments or []))
    if recipe.monitors.console and is_main_process():  # importing torch takes seconds, and an empty screen looks like a fault
        typer.echo(describe_start(recipe))

    from cohort.session import start

    return EXIT_CODES[start(recipe).status]


def resume(run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", autocompletion=complete_run)]) -> int:
    """Resume an interrupted run exactly where it stopped.

    \b
    cohort resume runs/my-run    after Ctrl-C, a crash or a power cut
    """
    from cohort.training.launch import is_main_process

    if has_console(run) and is_main_process():
        typer.echo(f"resuming {run}; loading ...")

    from cohort.observe.run_folder import RunFolder
    from cohort.session import resume as resume_run

    result = resume_run(run)
    if result.status == "finished" and is_main_process():
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


def serve(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE] [KEY=VALUE]... [-- FLAGS]",
            help="A recipe as for train, or a run folder; after --, flags for vLLM.",
            autocompletion=complete_recipe_words,
        ),
    ] = None,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    public: Annotated[
        bool, typer.Option("--public", help="Allow 0.0.0.0, :: and internet addresses, where strangers may reach the server.")
    ] = False,
    python: Annotated[
        str, typer.Option(metavar="PATH", help="Python that has vLLM (default: this one, else that of `make vllm`).")
    ] = "",
    print_only: Annotated[bool, typer.Option("--print", help="Print the command without running it.")] = False,
) -> None:
    """Serve a recipe's model with vLLM, for runs that sample from it.

    \b
    cohort serve my.toml                         on 127.0.0.1:8000
    cohort serve my.toml --print                 print the command as a script
    cohort serve my.toml --host 10.0.0.5         for trainers on other hosts
    CUDA_VISIBLE_DEVICES=4,5 cohort serve my.toml -- --tensor-parallel-size 2
    cohort train my.toml sampling.servers=http://127.0.0.1:8000

    Prints the vLLM command, then replaces itself with it. The server has no authentication: anyone who reaches it can read and replace the model. Use private networks only.
    """
    from cohort.tools.serve import run_serve

    run_serve(arguments or [], host, port, public, python, print_only)
