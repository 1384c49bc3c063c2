"""Turns the arguments of `cohort compare` into contenders, each with its recipe.

A contender that names an algorithm is the base recipe with another objective. Settings that some preset names come from the preset,
not from the base: a base tuned with kl_coef = 0.005 does not change Dr. GRPO, which has no KL. Settings that no preset names (std_ddof,
mask_truncated, ...) belong to the recipe and stay. The base's own algorithm keeps the base's whole section.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohort.algorithms.named import PRESETS
from cohort.errors import RecipeError
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.file import (
    DEMO,
    PREFERRED,
    assign,
    build_recipe,
    find_recipe_path,
    is_section_value,
    list_built_in,
    list_leaf_fields,
    load_recipe,
    parse_value,
    read_tree,
    resolve_undotted,
)
from cohort.recipe.schema import Recipe
from cohort.recipe.sections import suggest_nearest
from cohort.recipe.trl_names import TRL_NAMES, UNCLEAR
from cohort.recipe.user_functions import resolve_recipe

BUDGET = ("train.num_steps", "train.prompts_per_step", "train.group_size", "evaluation")
"""Settings that are the same for all contenders."""
SET_BY_COMPARE = {
    "seed": "give the seeds with --seeds 0,1,2",
    "name": "runs are named LABEL-seed-SEED; write LABEL=CONTENDER to choose the label",
    "runs_folder": "give the folder with --output",
    "algorithm": "the contenders name the algorithms; single settings are algorithm.KEY=value",
    "algorithm.name": "the contenders name the algorithms",
}
"""Settings that a comparison makes itself, and what to write instead."""
DECIDES_THE_START = ("model", "cold_start", "prompts")
"""Sections that the starting model depends on."""
RESERVED = "start"


@dataclass(frozen=True)
class Contender:
    label: str
    word: str
    """The argument, without the label."""
    recipe: Recipe
    """With the base's seed and name, which each run replaces."""
    shares_start: bool
    """Starts from the cold start that the contenders of a seed share."""
    note: str = ""

    @property
    def slug(self) -> str:
        """The label as part of a folder name."""
        return re.sub(r"[^A-Za-z0-9_.+-]+", "-", self.label).strip("-.")


@dataclass(frozen=True)
class Lineup:
    """The contenders and the recipe they are based on."""

    base_name: str
    base: Recipe
    contenders: tuple[Contender, ...]


def find_contenders(words: Sequence[str], recipe: str) -> Lineup:
    """The contenders of `[LABEL=]CONTENDER ... KEY=VALUE ...` and --recipe."""
    specs, overrides = sort_words(words)
    if not specs:
        raise RecipeError("name at least one contender: an algorithm (cohort algorithms) or a recipe, e.g. grpo dr_grpo")
    base_name = recipe or (specs[0][1] if all(is_recipe(spec) for _, spec in specs) else DEMO)
    base_tree = read_recipe_tree(base_name)
    base = build_contender_recipe(base_tree, overrides, {}, f"recipe {base_name}")
    if base.train.num_steps == 0:
        raise RecipeError("train.num_steps: 0 trains no contender; give the steps for each of them, e.g. num_steps=60")
    contenders = tuple(make_contender(label, spec, base_tree, base, overrides) for label, spec in specs)
    refuse_equal_labels(contenders)
    return Lineup(base_name, base, contenders)


# -- arguments ---------------------------------------------------------------------------------------------------------


def sort_words(words: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """((label or "", contender) pairs, settings for all)."""
    specs: list[tuple[str, str]] = []
    overrides: list[str] = []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or ":" in key:  # grpo, a.toml, dpo:data=start
            specs.append(("", word))
        elif is_recipe_key(key):
            whole = "." in key or is_section_value(key, parse_value(value))
            if advice := SET_BY_COMPARE.get(key if whole else resolve_undotted(key)):
                raise RecipeError(f"{key}: a comparison sets it itself; {advice}")
            overrides.append(word)
        elif value.partition(":")[0] in PRESETS or is_recipe(value):
            if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", key):
                raise RecipeError(f"label {key!r}: it names folders; use letters, digits and _ . + -")
            specs.append((key, value))
        else:
            known = [path for path, _ in list_leaf_fields(Recipe)]
            close = suggest_nearest(key, [*known, *(path.rsplit(".", 1)[-1] for path in known)])
            raise RecipeError(
                f"{word!r}: {key!r} is not a recipe key{close}, and {value!r} is not a contender to be labelled {key!r}"
                f"{suggest_nearest(value.partition(':')[0], [*PRESETS, *list_built_in()])}"
            )
    return specs, overrides


def is_recipe_key(key: str) -> bool:
    """True also for other tools' keys, which are refused later, with ours."""
    if "." in key:
        return key.partition(".")[0] in Recipe.model_fields
    names = {path.rsplit(".", 1)[-1] for path, _ in list_leaf_fields(Recipe)}
    return key in {*names, *Recipe.model_fields, *PREFERRED, *TRL_NAMES, *UNCLEAR}


def is_recipe(spec: str) -> bool:
    try:
        return spec.partition(":")[0] not in PRESETS and find_recipe_path(spec).is_file()
    except RecipeError:
        return False


def refuse_equal_labels(contenders: Sequence[Contender]) -> None:
    seen: dict[str, Contender] = {}
    for contender in contenders:
        if contender.slug == RESERVED:
            raise RecipeError(f"label {contender.label!r}: it is reserved for the shared cold start; choose another")
        if contender.slug in seen:
            raise RecipeError(
                f"two contenders are called {contender.label!r} ({seen[contender.slug].word} and {contender.word}); "
                f"give one another label, e.g. second={contender.word}"
            )
        seen[contender.slug] = contender


# -- recipes -----------------------------------------------------------------------------------------------------------


def make_contender(label: str, spec: str, base_tree: Mapping[str, Any], base: Recipe, overrides: Sequence[str]) -> Contender:
    name, colon, own_settings = spec.partition(":")
    if name in PRESETS:
        label = label or spec
        own = parse_settings(label, own_settings) if colon else {}
        tree = copy.deepcopy(dict(base_tree))
        assign(tree, "algorithm.name", name)
        return Contender(label, spec, build_contender_recipe(tree, overrides, own, f"contender {label}"), True)
    if not is_recipe(spec):
        if colon and is_recipe(name):
            raise RecipeError(f"contender {spec!r}: settings after a colon are for algorithms; put them into {name}")
        raise RecipeError(
            f"contender {spec!r}: neither an algorithm ({', '.join(PRESETS)}) nor a recipe (a file, or one of "
            f"{', '.join(list_built_in())}){suggest_nearest(name, [*PRESETS, *list_built_in()])}"
        )
    path = find_recipe_path(spec)
    label = label or (path.parent.name if path.name == "recipe.toml" else path.stem)
    recipe = build_contender_recipe(read_recipe_tree(spec), overrides, {}, f"contender {label}")
    refuse_other_budget(label, recipe, base)
    others = [section for section in DECIDES_THE_START if getattr(recipe, section) != getattr(base, section)]
    notes = [f"has its own starting model (other {', '.join(f'[{section}]' for section in others)})"] if others else []
    notes += ["has its own rewards"] if recipe.rewards != base.rewards else []
    return Contender(label, spec, recipe, not others, "; ".join(notes))


def parse_settings(label: str, text: str) -> dict[str, Any]:
    """The settings of an algorithm after its colon, `key=value,key=value`."""
    settings: dict[str, Any] = {}
    for word in text.split(","):
        key, equals, value = (part.strip() for part in word.partition("="))
        if not equals or not key:
            raise RecipeError(f"contender {label!r}: write key=value,key=value after the colon (got {word!r})")
        key = key.removeprefix("algorithm.")
        if key == "name":
            raise RecipeError(f"contender {label!r}: the algorithm is named before the colon")
        if key not in AlgorithmConfig.model_fields and not key.startswith("args."):
            shared = f". For all contenders, write it as an argument: {word.strip()}" if is_recipe_key(key) else ""
            raise RecipeError(
                f"contender {label!r}: {key!r} is not a key of [algorithm]{suggest_nearest(key, AlgorithmConfig.model_fields)}{shared}"
            )
        settings[f"algorithm.{key}"] = parse_value(value)
    return settings


def read_recipe_tree(recipe: str) -> dict[str, Any]:
    path = find_recipe_path(recipe)
    load_recipe(path)  # checks the file
    return read_tree(path)


def build_contender_recipe(tree: Mapping[str, Any], overrides: Sequence[str], own: Mapping[str, Any], who: str) -> Recipe:
    """The tree with the settings for all, then those of the contender."""
    changed = copy.deepcopy(dict(tree))
    for override in overrides:
        key, _, text = override.partition("=")
        assign(changed, key.strip(), parse_value(text.strip()))
    for key, value in own.items():
        assign(changed, key, value)
    try:
        return resolve_recipe(build_recipe(changed))  # a faulty user function fails before hours of other runs
    except RecipeError as problem:
        raise RecipeError(f"{who}: {problem}") from None


def refuse_other_budget(label: str, recipe: Recipe, base: Recipe) -> None:
    mine, theirs = flatten(recipe.model_dump()), flatten(base.model_dump())
    for path in {**mine, **theirs}:
        if f"{path}.".startswith(tuple(f"{key}." for key in BUDGET)) and mine.get(path) != theirs.get(path):
            raise RecipeError(
                f"contender {label!r}: {path} is {write_setting(mine.get(path))}, and {write_setting(theirs.get(path))} in the base recipe. All "
                f"contenders have the same budget: give the value for all ({path}=...), or name the base with --recipe"
            )


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted path -> value; lists and empty sections are values."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def write_setting(value: Any) -> str:
    return "not set" if value is None else repr(value)
