"""The command line: loads the commands of tools/commands and handles their errors. `--help` never loads torch."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any

import typer

from cohort.base.processes import begin_process
from cohort.tools.commands import COMMANDS, KNOW_RANKS
from cohort.tools.commands.options import Command

app = typer.Typer(
    name="cohort",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@contextmanager
def print_plain_errors() -> Iterator[None]:
    """Errors made for people are printed as they are; a traceback is for bugs."""
    from cohort.base.text import make_printable
    from cohort.errors import CohortError, RecipeError

    try:
        yield
    except CohortError as problem:
        # The ranks of a host read the same recipe, and the first of them says what is wrong with it.
        if problem.told or (isinstance(problem, RecipeError) and os.environ.get("LOCAL_RANK", "0") != "0"):
            raise typer.Exit(1) from None
        message = str(problem)
    except OSError as problem:  # a full disk, a folder that cannot be written: nobody's bug
        message = f"{problem.strerror or problem}{f': {problem.filename}' if problem.filename else ''}"
    else:
        return
    print_error(f"error: {make_printable(message)}")  # it may quote what a model wrote, and a terminal would obey
    raise typer.Exit(1)


def refuse_ranks(command: str) -> None:
    """Of commands that one process does: several would do it several times, and write over each other."""
    from cohort.errors import RankError

    if command not in KNOW_RANKS and "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
        known = " and ".join([", ".join(KNOW_RANKS[:-1]), KNOW_RANKS[-1]])
        raise RankError(f"cohort {command} is the work of one process: start it without torchrun. {known} know ranks.")


def print_error(text: str) -> None:
    """Wrapped between words for a person at a terminal; as it is for everybody else."""
    if not sys.stderr.isatty():
        typer.echo(text, err=True)
        return
    from rich.console import Console
    from rich.text import Text

    from cohort.observe.terminal import print_wrapped

    print_wrapped(Console(stderr=True, highlight=False), Text(text))


def print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"cohort {import_module('cohort').__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=print_version, help="Print the version.")
    ] = False,
) -> None:
    """GRPO for language models with verifiable rewards. What to type next:

    \b
    cohort train             a first run: minutes on a CPU, nothing downloaded
    cohort look runs/NAME    what it wrote; its curves: runs/NAME/report.html
    cohort dashboard         all runs in a browser, while they train
    cohort train my.toml     your own model, data and reward: cohort train --help
    cohort COMMAND --help    more on a command, with examples
    """


def wrap_command(function: Callable[..., int | None]) -> Callable[..., None]:
    """The function of a command, with its errors in words and its number as the exit code."""

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
