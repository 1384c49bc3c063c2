"""Arguments that several commands share, shell completion, and advice for recipe keys typed as options (`--group_size 8`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

TAKE_SETTINGS = ("train", "doctor", "compare", "serve")
"""Commands whose arguments may be recipe settings."""
RECIPE_OPTIONS = ("config", "config_file", "config_path", "config_name", "recipe", "recipe_file", "yaml", "c")
"""Options that name the recipe file in other tools."""
UsageError: Any = typer.BadParameter.__base__


def complete_recipe_words(ctx: typer.Context, incomplete: str) -> list[str]:
    """Shell completion: a built-in recipe or recipe file as the first argument, recipe keys everywhere."""
    from cohort.recipe.file import list_built_in, list_leaf_fields, shorten_path
    from cohort.recipe.schema import Recipe

    before = ctx.params.get("arguments") or []
    if before and before[-1].endswith("="):  # bash splits the value from its key
        return []
    recipes = [] if before else [*list_built_in(), *map(str, Path().glob("*.toml"))]
    paths = [path for path, _ in list_leaf_fields(Recipe)]
    keys = [f"{key}=" for path in paths for key in dict.fromkeys((shorten_path(path), path))]
    found = [word for word in recipes + keys if word.startswith(incomplete)]
    # A shell adds a space after a single match. A key still needs its value, so a second match stops the shell before the `=`.
    return [found[0][:-1], *found] if len(found) == 1 and found[0].endswith("=") else found


def complete_run(incomplete: str) -> list[str]:
    """Shell completion: the run folders in ./runs. The shell completes other paths itself."""
    return [run for file in sorted(Path("runs").glob("*/recipe.toml")) if (run := str(file.parent)).startswith(incomplete)]


def complete_algorithm(incomplete: str) -> list[str]:
    from cohort.algorithms.named import PRESETS

    return [name for name in PRESETS if name.startswith(incomplete)]


RecipeArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RECIPE] [KEY=VALUE]...",
        help="A recipe file or built-in name, then settings.",
        autocompletion=complete_recipe_words,
    ),
]
Checkpoint = Annotated[
    str,
    typer.Option(help="final, last, best, start, or a step such as 100 (default: final, or last if the run is unfinished)."),
]
Host = Annotated[str, typer.Option(help="Address to listen on (default: reachable from this machine only).")]


class Command(TyperCommand):
    """A command that answers unknown options with the recipe setting that they resemble."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The options, then each argument as its metavar states it: typer's braces mean a choice elsewhere."""
        return ["[OPTIONS]", *(str(one.metavar) for one in self.params if one.param_type_name == "argument")]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        typed = list(args)
        try:
            return super().parse_args(ctx, args)
        except UsageError as problem:
            option = getattr(problem, "option_name", "")
            if advice := advise(str(self.name), str(option), typed) if option else "":
                raise UsageError(advice, ctx) from None
            raise


def advise(command: str, option: str, typed: Sequence[str]) -> str:
    """What to write instead of an option that the command does not have; "" if the option is unknown."""
    from cohort.recipe.file import write_override

    place = next((place for place, word in enumerate(typed) if word.startswith(option)), None)
    if place is None:
        return ""
    flag, separator, text = typed[place].partition("=")
    following = typed[place + 1] if place + 1 < len(typed) else ""
    if not separator:
        text = following if following and (not following.startswith("-") or following[1:2].isdecimal()) else "true"
    word = flag.lstrip("-").replace("-", "_")
    if word in RECIPE_OPTIONS and command in ("train", "doctor"):
        return f"{flag}: name the recipe without an option: cohort {command} {text if text != 'true' else 'my.toml'}"
    setting = write_override(word, text)
    if not setting:
        return ""
    if not setting.startswith(f"{word}="):
        return f"{flag}: {setting}"
    if command in TAKE_SETTINGS:
        return f"{flag}: write recipe settings as key=value, without dashes: {setting}"
    if command == "evaluate":
        return f"{flag}: give recipe settings with --set: --set {setting}"
    if command == "resume":
        return f"{flag}: a run keeps the recipe it was started with; start another run with: cohort train {setting}"
    return ""
