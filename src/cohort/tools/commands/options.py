"""Words of a recipe that were typed as options: `--group_size 8` is answered with `group_size=8`."""

from __future__ import annotations

from collections.abc import Sequence
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
