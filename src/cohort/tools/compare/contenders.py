"""Who takes part: the words of the command line become contenders, each with the recipe it is trained by.

A contender that names an algorithm is the base recipe with another objective. A choice that some preset names belongs to
the algorithm, so it comes from the preset and not from the base (a base tuned with kl_coef = 0.005 does not turn Dr. GRPO,
which has no KL, into something else); a choice that no preset names (std_ddof, mask_truncated, ...) belongs to the recipe
and stays. The algorithm that the base itself names keeps the base's section whole.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohort.algorithms.presets import PRESETS
from cohort.errors import RecipeError
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.built_in import DEMO, built_in, find_recipe_path
from cohort.recipe.file import (
    PREFERRED,
    assign,
    build_recipe,
    is_section_value,
    list_leaf_fields,
    load_recipe,
    parse_value,
    read_tree,
    resolve_undotted,
)
from cohort.recipe.foreign import is_foreign
from cohort.recipe.own import resolve_recipe
from cohort.recipe.schema import Recipe
from cohort.recipe.section import suggest_nearest

BUDGET = ("train.num_steps", "train.prompts_per_step", "train.group_size", "evaluation")
"""Equal for all, or the table compares budgets and not algorithms."""
NOT_FOR_ALL = {
    "seed": "give the seeds with --seeds 0,1,2",
    "name": "runs are named LABEL-seed-SEED; write LABEL=CONTENDER to choose the label",
    "runs_folder": "give the folder with --output",
    "algorithm": "the contenders name the algorithms; single choices are algorithm.KEY=value",
    "algorithm.name": "the contenders name the algorithms",
}
"""Words that a comparison sets itself, and what to write instead."""
DECIDES_THE_START = ("model", "cold_start", "prompts")
"""Sections that the starting model depends on."""
RESERVED = "start"


@dataclass(frozen=True)
class Contender:
    label: str
    word: str
    """As it was typed, without the label."""
    recipe: Recipe
    """The base's seed and names are in it; each run sets its own."""
    shares_start: bool
    """Starts from the cold start that all contenders of a seed share."""
    note: str = ""

    @property
    def slug(self) -> str:
        """The label as part of a folder's name."""
        return re.sub(r"[^A-Za-z0-9_.+-]+", "-", self.label).strip("-.")


@dataclass(frozen=True)
class Lineup:
    """The contenders and what they have in common."""

    base_name: str
    base: Recipe
    contenders: tuple[Contender, ...]


def find_contenders(words: Sequence[str], recipe: str) -> Lineup:
    """`[LABEL=]CONTENDER ... KEY=VALUE ...` and --recipe."""
    specs, overrides = sort_words(words)
    if not specs:
        raise RecipeError("name at least one contender: an algorithm (cohort algorithms) or a recipe, e.g. grpo dr_grpo")
    recipes_only = all(is_recipe(spec) for _, spec in specs)
    base_name = recipe or (specs[0][1] if recipes_only else DEMO)
    base_tree = read_recipe_tree(base_name)
    base = build_contender_recipe(base_tree, overrides, {}, f"recipe {base_name}")
    if base.train.num_steps == 0:
        raise RecipeError("train.num_steps: 0 trains no contender; give the steps that each of them gets, e.g. num_steps=60")
    contenders = tuple(make_contender(label, spec, base_tree, base, overrides) for label, spec in specs)
    refuse_twins(contenders)
    return Lineup(base_name, base, contenders)


# -- words -------------------------------------------------------------------------------------------------------------


def sort_words(words: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """((label, contender) pairs, overrides for all). A label that was not given is empty."""
    specs: list[tuple[str, str]] = []
    overrides: list[str] = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or ":" in key:  # grpo, a.toml, dpo:data=start
            specs.append(("", word))
        elif is_recipe_key(key):
            refuse_not_for_all(key, value)
            overrides.append(word)
        elif is_contender(value):
            specs.append((check_label(key), value))
        else:
            known = [path for path, _ in list_leaf_fields(Recipe)]
            close = suggest_nearest(key, [*known, *(path.rsplit(".", 1)[-1] for path in known)])
            raise RecipeError(
                f"{word!r}: {key!r} is no recipe key{close}, and {value!r} is no contender to be called {key!r}"
                f"{suggest_nearest(value.partition(':')[0], list_contender_names())}"
            )
    return specs, overrides


def is_recipe_key(key: str) -> bool:
    """Also other tools' words: those are refused later, with ours."""
    if "." in key:
        return key.partition(".")[0] in Recipe.model_fields
    names = {path.rsplit(".", 1)[-1] for path, _ in list_leaf_fields(Recipe)}
    return key in {*names, *Recipe.model_fields, *PREFERRED} or is_foreign(key)


def is_contender(spec: str) -> bool:
    return spec.partition(":")[0] in PRESETS or is_recipe(spec)


def is_recipe(spec: str) -> bool:
    if spec.partition(":")[0] in PRESETS:
        return False
    try:
        return find_recipe_path(spec).is_file()
    except RecipeError:
        return False


def list_contender_names() -> list[str]:
    return [*PRESETS, *built_in()]


def refuse_not_for_all(key: str, value: str) -> None:
    whole = "." in key or is_section_value(key, parse_value(value))
    path = key if whole else resolve_undotted(key)
    if path in NOT_FOR_ALL:
        raise RecipeError(f"{key}: a comparison sets it itself; {NOT_FOR_ALL[path]}")


def check_label(label: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", label):
        raise RecipeError(f"label {label!r}: it names folders; use letters, digits and _ . + -")
    return label


def refuse_twins(contenders: Sequence[Contender]) -> None:
    seen: dict[str, Contender] = {}
    for contender in contenders:
        if contender.slug == RESERVED:
            raise RecipeError(f"label {contender.label!r}: it is kept for the shared cold start; choose another")
        if contender.slug in seen:
            raise RecipeError(
                f"two contenders are called {contender.label!r} ({seen[contender.slug].word} and {contender.word}); "
                f"give one a label of its own, e.g. second={contender.word}"
            )
        seen[contender.slug] = contender


# -- recipes -----------------------------------------------------------------------------------------------------------


def make_contender(label: str, spec: str, base_tree: Mapping[str, Any], base: Recipe, overrides: Sequence[str]) -> Contender:
    name, colon, own_words = spec.partition(":")
    if name in PRESETS:
        label = label or spec
        own = parse_choices(label, own_words) if colon else {}
        return Contender(
            label, spec, build_contender_recipe(set_algorithm(base_tree, name), overrides, own, f"contender {label}"), True
        )
    if not is_recipe(spec):
        if colon and is_recipe(name):
            raise RecipeError(f"contender {spec!r}: choices after a colon are for algorithms; put them into {name}")
        raise RecipeError(
            f"contender {spec!r}: neither an algorithm ({', '.join(PRESETS)}) nor a recipe (a file, or one of "
            f"{', '.join(built_in())}){suggest_nearest(name, list_contender_names())}"
        )
    path = find_recipe_path(spec)
    label = label or (path.parent.name if path.name == "recipe.toml" else path.stem)
    recipe = build_contender_recipe(read_recipe_tree(spec), overrides, {}, f"contender {label}")
    refuse_other_budget(label, recipe, base)
    return Contender(label, spec, recipe, *compare_with_base(recipe, base))


def parse_choices(label: str, words: str) -> dict[str, Any]:
    """`key=value,key=value` behind the colon of an algorithm."""
    choices: dict[str, Any] = {}
    for word in words.split(","):
        key, equals, value = (part.strip() for part in word.partition("="))
        if not equals or not key:
            raise RecipeError(f"contender {label!r}: write choices as key=value,key=value behind the colon (got {word!r})")
        key = key.removeprefix("algorithm.")
        if key == "name":
            raise RecipeError(f"contender {label!r}: the algorithm is named before the colon")
        if key not in AlgorithmConfig.model_fields and not key.startswith("args."):
            shared = f". Words for all contenders stand alone: {word.strip()}" if is_recipe_key(key) else ""
            raise RecipeError(
                f"contender {label!r}: {key!r} is not a choice of [algorithm]{suggest_nearest(key, AlgorithmConfig.model_fields)}{shared}"
            )
        choices[f"algorithm.{key}"] = parse_value(value)
    return choices


def read_recipe_tree(recipe: str) -> dict[str, Any]:
    path = find_recipe_path(recipe)
    load_recipe(path)  # says in words what is wrong with the file
    return read_tree(path)


def set_algorithm(tree: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The tree as `algorithm=NAME` on the command line would leave it."""
    changed = copy.deepcopy(dict(tree))
    assign(changed, "algorithm.name", name)
    return changed


def build_contender_recipe(tree: Mapping[str, Any], overrides: Sequence[str], own: Mapping[str, Any], who: str) -> Recipe:
    """The tree with the words for all, then a contender's own, which are the more particular ones."""
    changed = copy.deepcopy(dict(tree))
    for override in overrides:
        key, _, text = override.partition("=")
        assign(changed, key.strip(), parse_value(text.strip()))
    for key, value in own.items():
        assign(changed, key, value)
    try:
        return resolve_recipe(build_recipe(changed))  # what is wrong with a user's function is found before hours of other runs
    except RecipeError as problem:
        raise RecipeError(f"{who}: {problem}") from None


def refuse_other_budget(label: str, recipe: Recipe, base: Recipe) -> None:
    mine, theirs = flatten(recipe.model_dump()), flatten(base.model_dump())
    for path in {**mine, **theirs}:
        inside = any(path == word or path.startswith(f"{word}.") for word in BUDGET)
        if inside and mine.get(path) != theirs.get(path):
            raise RecipeError(
                f"contender {label!r}: {path} is {write_setting(mine.get(path))}, and {write_setting(theirs.get(path))} in the base recipe. All "
                f"contenders have the same budget: give the value for all ({path}=...), or name the base with --recipe"
            )


def compare_with_base(recipe: Recipe, base: Recipe) -> tuple[bool, str]:
    """(whether it can start from the shared cold start, what has to be said about it)."""
    others = [section for section in DECIDES_THE_START if getattr(recipe, section) != getattr(base, section)]
    notes = []
    if others:
        notes.append(f"starts from a model of its own (other {', '.join(f'[{section}]' for section in others)})")
    if recipe.rewards != base.rewards:
        notes.append("is judged by rewards of its own")
    return not others, "; ".join(notes)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted path -> value, sections opened, lists and empty sections as they are."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def write_setting(value: Any) -> str:
    return "not set" if value is None else repr(value)
