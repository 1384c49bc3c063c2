"""Two runs at the same prompt: whether their noise is the same, and where their completions part.

The noise of a sampled token depends on seed, step, draw, sample and position alone (types.NoiseKey). Where two runs share these, and
sample at the same temperature, the first token in which two completions differ is one that the two policies weigh differently; where
they do not, chance may have decided, and a page must say so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohort.observe.report.data import as_dict

Recipe = Mapping[str, Any]
"""As it stands in recipe.toml."""
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Condition:
    """Something that decides what is sampled, in both runs."""

    label: str
    a: str
    b: str
    same: bool
    breaks: str = ""
    """What a difference means; empty where it takes nothing from the comparison."""


def compare_conditions(recipe_a: Recipe, recipe_b: Recipe, row_a: Row, row_b: Row) -> list[Condition]:
    """Everything that decides what is sampled beside the policy. The rows are completions of the same step and group."""
    prompt_a, prompt_b = (row.get("prompt_ids") or row.get("prompt") for row in (row_a, row_b))
    found = [compare_words("seed", recipe_a.get("seed"), recipe_b.get("seed"), "the noise is another")]
    found.append(
        Condition(
            "prompt",
            f"row {row_a.get('prompt_index')}",
            f"row {row_b.get('prompt_index')}",
            row_a.get("prompt_index") == row_b.get("prompt_index") and prompt_a == prompt_b,
            "the questions differ",
        )
    )
    words: tuple[tuple[str, str, str], ...] = (
        ("sampling", "temperature", "the same noise is weighed otherwise"),
        ("train", "group_size", ""),
        ("sampling", "max_completion_tokens", ""),
    )
    for section, key, breaks in words:
        a, b = (as_dict(recipe.get(section)).get(key) for recipe in (recipe_a, recipe_b))
        found.append(compare_words(f"{section}.{key}", a, b, breaks))
    found.append(compare_words("policy_version", row_a.get("policy_version"), row_b.get("policy_version"), ""))
    for label, recipe in (("first run", recipe_a), ("second run", recipe_b)):
        if reason := find_unkeyed(recipe):
            found.append(Condition(f"noise of the {label}", reason, "", False, "its noise is not known from step and group"))
    return found


def compare_words(label: str, a: Any, b: Any, breaks: str) -> Condition:
    return Condition(label, write_setting(a), write_setting(b), a == b and a is not None, breaks)


def write_setting(value: Any) -> str:
    return "not written" if value is None else str(value)


def find_unkeyed(recipe: Recipe) -> str:
    """Why step and group of a run do not name its noise; empty where they do."""
    algorithm, sampling, ahead = (as_dict(recipe.get(name)) for name in ("algorithm", "sampling", "ahead"))
    if algorithm.get("data", "policy") not in ("policy", "start"):
        return "its completions are written in the rows, not sampled"
    if sampling.get("engine") == "vllm" or sampling.get("servers"):
        return "vLLM draws its own noise"
    if algorithm.get("refill_rounds"):
        return "dynamic sampling (algorithm.refill_rounds) keeps some of the groups that were drawn and numbers them anew"
    if ahead.get("in_flight"):
        return "ahead.in_flight swaps the weights inside of completions"
    return ""


def describe_noise(conditions: Sequence[Condition]) -> tuple[bool, str]:
    """Whether a difference between the completions is the policy's, and the sentence that says so."""
    broken = [f"{one.label} ({one.breaks})" for one in conditions if not one.same and one.breaks]
    if broken:
        return False, f"The noise is not known to be the same: {'; '.join(broken)}. Differences may be chance."
    return True, "The noise is the same, so every difference between the completions is the policy's."


@dataclass(frozen=True)
class Parting:
    """Where two completions part."""

    token: int | None
    """Place of the first token that differs, from 0; None: they are the same."""
    characters: int
    """Length of the text that both begin with."""
    cut: bool = False
    """One ends where the other goes on, because it ran into its limit."""


def find_parting(row_a: Row, row_b: Row) -> Parting:
    """The first token in which two completions differ; where one is the beginning of the other, the first that it lacks."""
    ids_a, ids_b = (tuple(row.get("completion_ids") or ()) for row in (row_a, row_b))
    characters = count_shared(str(row_a.get("completion") or ""), str(row_b.get("completion") or ""))
    if ids_a == ids_b:
        return Parting(None, characters)
    token = count_shared(ids_a, ids_b)
    shorter = row_a if len(ids_a) <= len(ids_b) else row_b
    cut = token == min(len(ids_a), len(ids_b)) and shorter.get("end") == "length"
    return Parting(token, characters, cut)


def count_shared(a: Sequence[Any], b: Sequence[Any]) -> int:
    """How far two sequences are the same."""
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
