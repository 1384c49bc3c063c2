"""Descriptions of algorithms: a sentence for a run, the table of `cohort algorithms`, the settings in which contenders differ. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cohort.algorithms.compatibility import OFF, UNWEIGHED, explain_idle
from cohort.algorithms.named import PRESETS, Own
from cohort.algorithms.registry import SAMPLED, Choice, Kind
from cohort.errors import RecipeError
from cohort.recipe.algorithm import AlgorithmConfig
from cohort.recipe.schema import PromptsConfig, Recipe, TeacherConfig
from cohort.recipe.sections import suggest_nearest

Choices = dict[str, Any]
COLUMNS = ("data", "advantage", "region", "aggregation", "KL", "extras")
DETAILS = ("std_ddof", "std_epsilon", "gamma", "mismatch_weight", "zero_variance", "prompt_choice")
"""Settings compared only between algorithms that use them; whether one uses them follows from its data and advantage."""
WHOLE_LINES = 400
"""Console width if the output is not a terminal, so that every row is one line."""
NO_TEACHER = TeacherConfig()
DATA_SOURCES = {
    "policy": "samples of the policy",
    "start": "samples of the starting policy",
    "demonstrations": "demonstrations",
    "pairs": "chosen and rejected completions",
}
KL_PLACES = {"loss": "in the loss", "token_reward": "in each token's reward", "completion_reward": "in the reward"}
EXTRAS = {
    "gae_lambda": "critic, lambda {0.gae_lambda:g}",
    "refill_rounds": "dynamic sampling, at most {0.refill_rounds} more rounds",
    "overlong_share": "soft overlong penalty over the last {0.overlong_share:.0%}",
    "mask_truncated": "truncated completions masked",
    "prompt_choice": "{0.prompt_choice} prompts",
    "reference_every": "reference refreshed every {0.reference_every} steps",
    "reference_decay": "reference a moving average with decay {0.reference_decay:g}",
    "mismatch_weight": "mismatch weight {0.mismatch_weight} {0.mismatch_cap:g}",
    "entropy_coef": "entropy bonus {0.entropy_coef:g}",
}
"""Descriptions of the other settings, for those that are on; {0} is the section [algorithm]."""


# -- a sentence --------------------------------------------------------------------------------------------------------


def describe_algorithm(algorithm: AlgorithmConfig, teacher: TeacherConfig = NO_TEACHER) -> str:
    """grpo: samples of the policy -> group_normalized -> clip 0.2/0.2 -> sequence_mean; k3 0.04 in the loss"""
    taught, region = bool(teacher.source), describe_choice(algorithm, "region")
    text = (
        f"{algorithm.name}: {DATA_SOURCES[algorithm.data]} -> {describe_choice(algorithm, 'advantage')} -> "
        f"{region if ' ' in region or ':' in region else f'region {region}'} -> "
        f"{describe_choice(algorithm, 'aggregation')}; {describe_kl(algorithm)}"
    )
    text += f"; every token also by teacher {teacher.source}, coef {teacher.coef:g}" if taught else ""
    extras, changed, ignored = list_extras(algorithm), list_changes(algorithm, taught), list_ignored(algorithm, taught)
    text += f"; {', '.join(extras)}" if extras else ""
    text += f" (changed from the preset: {changed})" if changed else ""
    return text + (f"; without effect here: {ignored}" if ignored else "")


def describe_choice(algorithm: AlgorithmConfig, kind: Kind) -> str:
    """group_normalized, clip 0.2/0.28, or my_module:function (tau 0.5): a user's function with its parameters."""
    choice: Choice = getattr(algorithm.chosen, kind)
    parameters = algorithm.read_parameters(choice) if choice.known else {}
    if choice.digest and parameters:
        return f"{choice.name} ({', '.join(f'{name} {format_value(value)}' for name, value in parameters.items())})"
    values = "/".join(f"{value:g}" for value in choice.select_shown(parameters).values()) if kind == "region" else ""
    return f"{choice.name} {values}" if values else choice.name


def describe_kl(algorithm: AlgorithmConfig) -> str:
    if not algorithm.kl_coef:
        return "no KL"
    if algorithm.chosen.region.traits.preference:
        return f"implicit KL, beta {algorithm.kl_coef:g}"
    text = f"{algorithm.kl_estimator} {algorithm.kl_coef:g} {KL_PLACES[algorithm.kl_in]}"
    text += ", corrected" if algorithm.kl_corrected else ""
    return text + (f", adapted to {algorithm.kl_target:g} nats" if algorithm.kl_target else "")


def list_extras(algorithm: AlgorithmConfig) -> list[str]:
    used = list_used(algorithm.model_dump(), algorithm.own)
    return [
        text.format(algorithm) for choice, text in EXTRAS.items() if used.get(choice, 0) not in (0, OFF.get(choice), *UNWEIGHED)
    ]


def list_changes(algorithm: AlgorithmConfig, taught: bool = False) -> str:
    """Settings that have an effect and differ from the preset: "kl_coef 0.005 instead of 0.04"."""
    used, preset = list_used(algorithm.model_dump(), algorithm.own, taught=taught), list_differences(algorithm)
    if algorithm.chosen.known:  # shown with the functions that take them
        preset.pop("args", None)
    return ", ".join(f"{choice} {used[choice]} instead of {value}" for choice, value in preset.items() if choice in used)


def list_ignored(algorithm: AlgorithmConfig, taught: bool = False) -> str:
    """Settings that differ from the preset and have no effect, grouped by the reason."""
    without = explain_idle(algorithm.model_dump(), algorithm.own, taught=taught)
    by_reason: dict[str, list[str]] = {}
    for choice in list_differences(algorithm):
        if choice in without:
            by_reason.setdefault(without[choice], []).append(choice)
    return ", ".join(f"{' and '.join(named)} ({reason})" for reason, named in by_reason.items())


def list_differences(algorithm: AlgorithmConfig) -> Choices:
    """Setting -> its value in the preset, for settings that differ; "auto" in the preset matches any value."""
    own = algorithm.model_dump()
    return {choice: value for choice, value in read_preset(algorithm.name).items() if value not in (own[choice], "auto")}


def describe_template(prompts: PromptsConfig) -> str:
    """chat template of prompts.chat_template, with enable_thinking no; "" for the tokenizer's template without arguments."""
    whose = "of prompts.chat_template" if prompts.chat_template else "of the tokenizer"
    args = ", ".join(f"{name} {format_value(value)}" for name, value in prompts.template_args.items())
    return f"chat template {whose}{f', with {args}' if args else ''}" if prompts.chat_template or args else ""


def describe_start(recipe: Recipe) -> str:
    """What the run will do, in 80 columns, printed before the model is loaded."""
    train = recipe.train
    work = ["cold start"] if recipe.cold_start.num_steps else []
    each = f" x {train.group_size} completions" if recipe.algorithm.data in SAMPLED else ""
    if train.num_steps:
        work.append(f"{train.num_steps} steps of {train.prompts_per_step} prompts{each} ({recipe.algorithm.name})")
    return f"{', then '.join(work)}; loading ..."


def describe_own(choice: Choice) -> str:
    """The docstring of a user's function and the digest of its source."""
    return f"{choice.kind} {choice.name}: {choice.sentence or 'no docstring'} (source {choice.digest[:12]})"


def format_value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


# -- a table -----------------------------------------------------------------------------------------------------------


def read_preset(name: str) -> Choices:
    """Every setting of a named algorithm, including defaults."""
    if name not in PRESETS:
        raise RecipeError(f"unknown algorithm {name!r} (known: {', '.join(PRESETS)}){suggest_nearest(name, PRESETS)}")
    return AlgorithmConfig(name=name).model_dump()


def list_used(choices: Mapping[str, Any], own: Own | None = None, *, taught: bool = False) -> Choices:
    """The settings that have an effect: a clip range has none on an algorithm that does not clip."""
    without = explain_idle(choices, own, taught=taught)
    return {choice: value for choice, value in choices.items() if choice not in without}


def find_differing(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys in which the rows differ, in the order of the first row that has them. Absent and off are the same."""

    def differs(key: str) -> bool:
        values = [row.get(key) or 0 for row in rows if key in row or key not in DETAILS]
        return any(value != values[0] for value in values)

    return [key for key in dict.fromkeys(key for row in rows for key in row) if differs(key)]


def list_cells(algorithm: AlgorithmConfig) -> list[str]:
    """The cells of a row, one for each of COLUMNS."""
    kinds: tuple[Kind, ...] = ("advantage", "region", "aggregation")
    extras = ["teacher"] if algorithm.chosen.advantage.traits.needs_teacher else []
    choices = (describe_choice(algorithm, kind) for kind in kinds)
    return [algorithm.data, *choices, describe_kl(algorithm), ", ".join([*extras, *list_extras(algorithm)])]


def print_algorithms(names: Sequence[str]) -> None:
    """Print the table (no name), all settings of one algorithm, or the settings in which several differ."""
    from rich.console import Console

    from cohort.base.text import make_table

    rows = {name: read_preset(name) for name in names or PRESETS}
    used = [list_used(choices) for choices in rows.values()]
    heads: Sequence[str]
    cells: Sequence[Sequence[str]]
    if not names:
        heads = ("algorithm", *COLUMNS)
        cells = [(name, *list_cells(AlgorithmConfig(name=name))) for name in rows]
    elif len(rows) == 1:
        heads, cells = ("setting", "value", "meaning"), []
        for choice, value in rows[names[0]].items():
            text = format_value(value) if choice in used[0] else f"({format_value(value)}, not used)"
            cells.append((choice, text, str(AlgorithmConfig.model_fields[choice].description)))
        del cells[0]  # its name
    else:
        heads = ("setting", *rows)
        shown = [choice for choice in find_differing(used) if choice != "name"]
        cells = [(choice, *(format_value(row[choice]) if choice in row else "-" for row in used)) for choice in shown]
    console = Console(highlight=False, width=None if Console().is_terminal else WHOLE_LINES)
    if not names and sum(max(map(len, column)) + 2 for column in zip(heads, *cells, strict=True)) > console.width:
        heads, *cells = [(name, " · ".join(filter(None, rest))) for name, *rest in (heads, *cells)]
    console.print(make_table(heads, cells, texts=len(heads)))
