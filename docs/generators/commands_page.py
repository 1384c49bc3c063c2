"""docs/commands.md: every command with its arguments, options and help, from the command line itself."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from cohort.cli import app
from cohort.tools.commands import COMMANDS
from pages import format_row

INTRODUCTION = """\
# Commands

<!-- Written by `make docs` from the commands themselves (src/cohort/tools/commands); edit there. -->

`cohort COMMAND --help` prints the same in a terminal. Recipe settings are `key=value`, dotted (`sampling.temperature=0.9`) or, if only one
section has the key, plain (`group_size=4`): [all keys](recipe.md). Exit codes: 0 finished, 1 failed or refused, 2 invalid arguments,
130 stopped by Ctrl-C, SIGTERM or SIGHUP.

| command | what it does |
|---|---|"""
COMPLETION = """
## Shell completion

`cohort --install-completion` adds completion to the start-up file of your shell (bash, zsh, fish, PowerShell); it works in new terminals.
`cohort --show-completion` prints it instead. It completes commands, options, built-in recipes, recipe files in the current folder, recipe
keys, run folders in `./runs` and names of algorithms, within a few tenths of a second."""
PAGES = {
    "train": "recipe.md", "resume": "resume.md", "evaluate": "metrics.md#eval", "export": "export.md", "compare": "compare.md",
    "algorithms": "algorithms.md", "doctor": "memory.md", "audit": "audit.md",
    "serve": "scale.md#sampling-on-vllm-servers", "look": "watching.md", "report": "watching.md",
    "dashboard": "watching.md#in-a-browser-live", "recipes": "recipe.md",
}  # fmt: skip
"""The page about each command."""


def make_page() -> str:
    """The text of docs/commands.md."""
    return "\n".join([INTRODUCTION, *write_index(), *write_commands()]).rstrip("\n") + "\n" + COMPLETION + "\n"


def list_commands() -> dict[str, Any]:
    """The commands by name, in the order of `cohort --help`."""
    group: Any = get_command(app)
    return {name: group.commands[name] for name in COMMANDS}


def write_index() -> Iterator[str]:
    for name, command in list_commands().items():
        first, _, _ = clean_help(command).partition("\n\n")
        yield format_row(f"[`cohort {name}`](#cohort-{name})", " ".join(first.split()))


def write_commands() -> Iterator[str]:
    for name, command in list_commands().items():
        yield ""
        yield f"## `cohort {name}`"
        yield ""
        for paragraph in clean_help(command).split("\n\n"):  # \b keeps the lines of a paragraph
            plain = paragraph.startswith("\b")
            yield from (
                ["```text", *paragraph[1:].strip("\n").splitlines(), "```", ""] if plain else [" ".join(paragraph.split()), ""]
            )
        if command.params:
            yield from ["| argument | default | |", "|---|---|---|", *map(write_parameter, command.params), ""]
        if name in PAGES:
            yield f"More: [{PAGES[name].partition('#')[0]}]({PAGES[name]})"


def clean_help(command: Any) -> str:
    return inspect.cleandoc(command.callback.__doc__ or "")


def write_parameter(parameter: Any) -> str:
    option = parameter.param_type_name == "option"
    names = ", ".join(parameter.opts) if option else parameter.metavar or parameter.name.upper()
    default = "" if parameter.default in (None, "", False) or callable(parameter.default) else str(parameter.default)
    if parameter.required:
        default = "required"
    return format_row(f"`{names}`", default, parameter.help or "")
