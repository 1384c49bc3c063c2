"""Built-in recipes, and how the words of the command line become one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cohort.errors import RecipeError
from cohort.recipe.file import load_recipe, write_override
from cohort.recipe.schema import Recipe
from cohort.recipe.section import suggest_nearest

HERE = Path(__file__).parent
DEMO = "column_addition"


def built_in() -> dict[str, str]:
    """Name -> first comment line of every built-in recipe."""
    files = sorted(HERE.glob("*/recipe.toml"))
    return {file.parent.name: file.read_text(encoding="utf-8").splitlines()[0].lstrip("# ") for file in files}


def split_words(words: Sequence[str]) -> tuple[str, list[str]]:
    """`[RECIPE] key=value ...`: the recipe, if there is one, comes first and holds no `=`."""
    if words and "=" not in words[0]:
        return words[0], list(words[1:])
    return "", list(words)


def find_recipe(recipe: str, overrides: Sequence[str]) -> Recipe:
    return load_recipe(find_recipe_path(recipe), overrides)


def find_recipe_path(recipe: str | Path) -> Path:
    """The file behind a path, a folder with a recipe.toml, a built-in name, or (when empty) the demo."""
    name = str(recipe) or DEMO
    for file in (Path(name) / "recipe.toml", Path(name), HERE / name / "recipe.toml"):
        if file.is_file():
            return file
    if (meant := write_override(name, "VALUE")).startswith(f"{name}="):
        raise RecipeError(f"{name}: words of a recipe are written key=value, without spaces: {meant}")
    raise RecipeError(
        f"recipe {name!r}: neither a file nor a built-in recipe{suggest_nearest(name, built_in())}. Built in: {', '.join(built_in())}"
    )
