"""A recipe whose choices are all known: the one place where a user's functions are imported and held to the rules of the others."""

from __future__ import annotations

from cohort.algorithms.fitting import find_contradiction
from cohort.algorithms.own import named_own, resolve_own
from cohort.errors import RecipeError
from cohort.recipe.rules import find_refusal
from cohort.recipe.schema import Recipe


def resolve_recipe(recipe: Recipe) -> Recipe:
    """The recipe with the user's functions that it names. Executes their code, so only what starts a run calls it."""
    words = recipe.algorithm.model_dump()
    if not named_own(words):
        return recipe
    own = resolve_own(words)
    resolved = recipe.model_copy(update={"algorithm": recipe.algorithm.resolved(own)})
    if reason := find_contradiction(words, own):
        raise RecipeError(f"algorithm: {reason}")
    if reason := find_refusal(resolved):
        raise RecipeError(reason)
    return resolved
