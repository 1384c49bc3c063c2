"""What an algorithm is made of, as a table: `cohort algorithms`, and the choices in which contenders differ. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cohort.algorithms.fitting import explain_idle
from cohort.algorithms.named import Chosen, Own
from cohort.algorithms.presets import PRESETS
from cohort.errors import RecipeError
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.section import nearest

Choices = dict[str, Any]
COLUMNS = ("data", "advantage", "region", "aggregation", "KL", "extras")
DETAILS = ("std_ddof", "std_epsilon", "gamma", "mismatch_weight", "zero_variance", "prompt_choice")
"""Told only where two that use them disagree: that one of them has no use for it follows from its data and advantage."""
WHOLE_LINES = 400
"""Columns where the output is no terminal: nothing is folded, a line is a row."""
KL_PLACES = {"loss": "in loss", "token_reward": "per token", "completion_reward": "per completion"}


def preset_choices(name: str) -> Choices:
    """Every choice of a named algorithm, the defaults included."""
    if name not in PRESETS:
        raise RecipeError(f"unknown algorithm {name!r} (known: {', '.join(PRESETS)}){nearest(name, PRESETS)}")
    return AlgorithmConfig(name=name).model_dump()


def in_use(choices: Mapping[str, Any], own: Own | None = None) -> Choices:
    """The choices that act: a clip range says nothing about an algorithm that clips nothing."""
    without = explain_idle(choices, own)
    return {choice: value for choice, value in choices.items() if choice not in without}


def differing(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys that tell the rows apart, in the order of the first row that has them. Absent and switched off are the same."""

    def tells(key: str) -> bool:
        values = [row.get(key) or 0 for row in rows if key in row or key not in DETAILS]
        return any(value != values[0] for value in values)

    return [key for key in dict.fromkeys(key for row in rows for key in row) if tells(key)]


def summary_row(choices: Mapping[str, Any]) -> list[str]:
    """One cell for each of COLUMNS."""
    return [
        str(choices["data"]),
        str(choices["advantage"]),
        region_text(choices),
        str(choices["aggregation"]),
        kl_text(choices),
        ", ".join(extras(choices)),
    ]


def region_text(choices: Mapping[str, Any]) -> str:
    """clip 0.2/0.28: limits below and above 1 in one, where they are the same."""
    region = Chosen.of(choices).region
    values = [f"{value:g}" for value in region.shown(choices).values()]
    if "clip_high" in region.parameters:
        values[:2] = [values[0] if values[0] == values[1] else "/".join(values[:2])]
    return " ".join(filter(None, [region.name, ", ".join(values)]))


def kl_text(choices: Mapping[str, Any]) -> str:
    if Chosen.of(choices).region.traits.preference:
        return f"implicit, {choices['kl_coef']:g}"
    if not choices["kl_coef"]:
        return "none"
    return f"{choices['kl_estimator']} {KL_PLACES[choices['kl_in']]}, {choices['kl_coef']:g}"


def extras(choices: Mapping[str, Any]) -> list[str]:
    used, found = in_use(choices), ["teacher"] if Chosen.of(choices).advantage.traits.needs_teacher else []
    if "gae_lambda" in used:
        found.append(f"critic, lambda {used['gae_lambda']:g}")
    if used.get("refill_rounds"):
        found.append("dynamic sampling")
    if used.get("overlong_share"):
        found.append(f"overlong {used['overlong_share']:g}")
    named = {"mask_truncated": "truncated masked", "kl_corrected": "KL corrected"}
    found += [text for choice, text in named.items() if used.get(choice)]
    if used.get("entropy_coef"):
        found.append(f"entropy {used['entropy_coef']:g}")
    return found


def print_algorithms(names: Sequence[str]) -> None:
    """No name: the table. One: every choice with its meaning. Several: the choices in which they differ."""
    from rich.console import Console

    from cohort.base.table import make_table

    rows = {name: preset_choices(name) for name in names or PRESETS}
    heads: Sequence[str] = ("algorithm", *COLUMNS)
    cells: list[Sequence[str]] = []
    if not names:
        cells += [(name, *summary_row(choices)) for name, choices in rows.items()]
    elif len(rows) == 1:
        choices = next(iter(rows.values()))
        acting = in_use(choices)
        heads = ("choice", "value", "meaning")
        for choice, field in AlgorithmConfig.model_fields.items():
            if choice != "name":
                value = written(choices[choice]) if choice in acting else f"({written(choices[choice])}, not used)"
                cells.append((choice, value, str(field.description)))
    else:
        used = [in_use(choices) for choices in rows.values()]
        heads = ("choice", *rows)
        for choice in differing(used):
            if choice != "name":
                cells.append((choice, *(written(row[choice]) if choice in row else "-" for row in used)))
    terminal = Console().is_terminal
    Console(highlight=False, width=None if terminal else WHOLE_LINES).print(make_table(heads, cells, texts=len(heads)))


def written(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
