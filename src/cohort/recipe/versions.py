"""Recipes of earlier versions, brought up to date: a list of small changes, each from one version to the next. No torch.

A file that names no version is of version 0, from before they were counted, and keeps the meaning it had. What is typed today
(overrides, Python) is of today. A new version is one more function in CHANGES; nothing else reads old recipes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cohort.base.trees import reach
from cohort.errors import RecipeError

Tree = dict[str, Any]

MOVED = {
    "cohort.rewards.shape:length": "cohort.rewards.penalties:length",
    "cohort.rewards.shape:repetition": "cohort.rewards.penalties:repetition",
    "cohort.rewards.shape:soft_overlong": "cohort.rewards.penalties:soft_overlong",
    "cohort.tasks.column_addition:check_steps": "cohort.data.column_addition:check_steps",
    "cohort.tasks.column_addition:column_addition": "cohort.data.column_addition:column_addition",
    "cohort.tasks.gym:gym_verifier": "cohort.rewards.gym.rows:gym_verifier",
    "cohort.tasks.gym:load_gym": "cohort.rewards.gym.rows:load_gym",
    "cohort.tasks.gym_verifier:gym_verifier": "cohort.rewards.gym.rows:gym_verifier",
    "cohort.tasks:column_addition": "cohort.data.column_addition:column_addition",
    "cohort.tasks:load_task": "cohort.data.tasks:load_task",
}
"""Functions of Cohort that a recipe of an earlier version can name as a reward or as a source of rows, and where they are now.

The last word stays: it is the part's name in the metrics.
"""


def name_moved_functions(tree: Tree) -> Tree:
    """Version 0 to 1: functions are named where they are now."""
    for _, section, word in find_function_places(tree):
        section[word] = MOVED.get(section[word], section[word])
    return tree


def keep_small_held_out_sets(tree: Tree) -> Tree:
    """Version 1 to 2: rows are held out by the share alone, however few that makes. Sets with a name are not split off."""
    evaluation = tree.setdefault("evaluation", {})
    if isinstance(evaluation, dict) and not evaluation.get("sets"):
        evaluation.setdefault("held_out_least", 0)
    return tree


def leave_out_cuts(tree: Tree) -> Tree:
    """Version 2 to 3: `[sampling]` has no top_p and top_k, which could only be 1 and 0. Any other value is left, and refused.

    Penalties are named where they are now.
    """
    sampling = tree.get("sampling")
    if isinstance(sampling, dict):
        for word, off in (("top_p", 1.0), ("top_k", 0)):
            if sampling.get(word) == off:
                del sampling[word]
    return name_moved_functions(tree)


CHANGES: tuple[Callable[[Tree], Tree], ...] = (name_moved_functions, keep_small_held_out_sets, leave_out_cuts)
"""CHANGES[n] makes a recipe of version n + 1 out of one of version n."""

VERSION = len(CHANGES)


def bring_up_to_date(tree: Mapping[str, Any]) -> Tree:
    """The tree of a recipe of any version as one of this version; a version from the future is refused."""
    version = tree.get("version", 0)
    if reason := explain_version(version):
        raise RecipeError(f"version: {reason}")
    changed = copy.deepcopy(dict(tree))
    for change in CHANGES[version:]:
        changed = change(changed)
    return changed | {"version": VERSION}


def explain_version(version: Any) -> str:
    """Why a recipe of this version cannot be read; "" if it can."""
    if isinstance(version, bool) or not isinstance(version, int) or version < 0:
        return (
            f"{version!r} is not a version; versions are whole numbers from 0 to {VERSION}. Leave the key as cohort wrote it."
        )
    if version > VERSION:
        return f"the recipe is of version {version}, and this cohort knows versions up to {VERSION}. Update cohort to read it."
    return ""


def refuse_moved_functions(tree: Mapping[str, Any]) -> None:
    """Old names are for old recipes; in words of today they are refused with the name of today."""
    for place, section, word in find_function_places(tree):
        if section[word] in MOVED:
            raise RecipeError(f"{place}: {section[word]} has moved; write {MOVED[section[word]]}")


def find_function_places(tree: Mapping[str, Any]) -> Iterator[tuple[str, Tree, str]]:
    """(path, section, word) of every text that may name a function. Nothing is validated yet: what has another shape is left."""
    for pattern in FUNCTION_WORDS:
        *path, word = pattern.split(".")
        for place, section in reach(tree, path):
            if isinstance(section, dict) and isinstance(section.get(word), str):
                yield ".".join([*place, word]), section, word


FUNCTION_WORDS = (
    "rewards.*.function",
    "prompts.source",
    "cold_start.source.source",
    "evaluation.sets.*.source",
    "evaluation.sets.*.rewards.*.function",
)
