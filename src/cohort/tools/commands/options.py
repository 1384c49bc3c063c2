"""Words that several commands take: what a shell completes, and `--group_size 8`, which is answered with `group_size=8`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

RECIPE_WORDS = ("train", "doctor", "compare", "bench", "serve")
"""Commands that take words of a recipe as they are."""
RECIPE_OPTIONS = ("config", "config_file", "config_path", "config_name", "recipe", "recipe_file", "yaml", "c")
"""What other tools call the option that names the file."""
UsageError: Any = typer.BadParameter.__base__
Checkpoint = Annotated[
    str,
    typer.Option(
        help="Of a run: final, last, best, start, or a step such as 100. By default final; last where there is no model yet."
    ),
]


def complete_recipe_words(ctx: typer.Context, incomplete: str) -> list[str]:
    """For a shell: a built-in recipe or a recipe file as the first word, keys of a recipe everywhere."""
    from cohort.recipe.file import list_built_in, list_leaf_fields, shorten_path
    from cohort.recipe.schema import Recipe

    before = ctx.params.get("words") or []
    if before and before[-1].endswith("="):  # bash takes the value of a key for a word of its own
        return []
    recipes = [] if before else [*list_built_in(), *map(str, Path().glob("*.toml"))]
    paths = [path for path, _ in list_leaf_fields(Recipe)]
    keys = [f"{key}=" for path in paths for key in dict.fromkeys((shorten_path(path), path))]
    found = [word for word in recipes + keys if word.startswith(incomplete)]
    # A shell writes a space behind a word that is alone, and a key is not yet a word: with a second one it stops before the `=`.
    return [found[0][:-1], *found] if len(found) == 1 and found[0].endswith("=") else found


def complete_run(incomplete: str) -> list[str]:
    """For a shell: the run folders of ./runs; another path is the shell's own work."""
    return [run for file in sorted(Path("runs").glob("*/recipe.toml")) if (run := str(file.parent)).startswith(incomplete)]


def complete_algorithm(incomplete: str) -> list[str]:
    from cohort.algorithms.named import PRESETS

    return [name for name in PRESETS if name.startswith(incomplete)]


class Command(TyperCommand):
    """A command whose unknown options are looked up among the words of a recipe, ours and those of other tools."""

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
    """What to write instead of an option that the command does not have; "" where nothing is known of it."""
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
        return f"{flag}: the recipe is named without an option: cohort {command} {text if text != 'true' else 'my.toml'}"
    meant = write_override(word, text)
    if not meant:
        return ""
    if not meant.startswith(f"{word}="):
        return f"{flag}: {meant}"
    if command in RECIPE_WORDS:
        return f"{flag}: words of a recipe are written key=value, without dashes: {meant}"
    if command == "evaluate":
        return f"{flag}: words of a recipe are given with --set: --set {meant}"
    if command == "resume":
        return f"{flag}: a run goes on with the recipe it was started with; start another with: cohort train {meant}"
    return ""
