"""The command line: loads the commands in tools/commands and prints their errors. `--help` never loads torch."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer

from cohort.base.processes import begin_process
from cohort.tools.commands import COMMANDS, MULTI_RANK
from cohort.tools.commands.options import Command

app = typer.Typer(
    name="cohort",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@contextmanager
def print_plain_errors() -> Iterator[None]:
    """Print Cohort's own errors and file errors without a traceback; a traceback means a bug."""
    from cohort.errors import CohortError, RecipeError

    try:
        yield
    except CohortError as problem:
        # All ranks of a host read the same recipe; the first one prints its errors.
        if problem.reported or (isinstance(problem, RecipeError) and os.environ.get("LOCAL_RANK", "0") != "0"):
            raise typer.Exit(1) from None
        message = str(problem)
    except OSError as problem:  # such as a full disk
        message = f"{problem.strerror or problem}{f': {problem.filename}' if problem.filename else ''}"
    else:
        return
    from cohort.observe.terminal import print_error

    print_error(message)
    raise typer.Exit(1)


def refuse_ranks(command: str) -> None:
    """Raise RankError if several ranks would do the same work and overwrite each other's files."""
    from cohort.errors import RankError

    if command not in MULTI_RANK and "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
        several = f"{', '.join(MULTI_RANK[:-1])} and {MULTI_RANK[-1]}"
        raise RankError(f"cohort {command} runs in one process: start it without torchrun, which is for {several}.")


def print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"cohort {import_module('cohort').__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=print_version, help="Print the version.")
    ] = False,
) -> None:
    """GRPO for language models with verifiable rewards. To get started:

    \b
    cohort train             a first run: minutes on a CPU, no downloads
    cohort look runs/NAME    its completions; the curves: runs/NAME/report.html
    cohort dashboard         all runs in a browser, also during training
    cohort train my.toml     your own model, data and reward: cohort train --help
    cohort COMMAND --help    more on a command, with examples
    """


def wrap_command(function: Callable[..., int | None]) -> Callable[..., None]:
    """The function of a command with plain error messages, its return value as the exit code."""

    @functools.wraps(function)
    def command(*arguments: Any, **options: Any) -> None:
        begin_process()
        with print_plain_errors():
            refuse_ranks(function.__name__)
            code = function(*arguments, **options)
        if code:
            raise typer.Exit(code)

    return command


for _name, _module in COMMANDS.items():
    app.command(_name, cls=Command)(wrap_command(getattr(import_module(_module), _name)))


if __name__ == "__main__":
    app()
