"""`cohort.evaluate`: a model, a run or an object, on rows that are handed in; the same estimators and engine as `cohort evaluate`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cohort.data.rows import load_rows
from cohort.errors import RecipeError, RunError
from cohort.observe.run_folder import make_paths_absolute, open_run_at
from cohort.recipe.file import is_section_value, load_recipe, resolve_undotted
from cohort.recipe.foreign import list_translated
from cohort.recipe.materials import Materials
from cohort.recipe.schema import EvaluationConfig
from cohort.tools.evaluate import Problems, evaluate_target, find_target, load_problems, refuse_lost_rewards, say
from cohort.training.python_inputs import save_python_model
from cohort.training.run_weights import Target

if TYPE_CHECKING:
    from cohort.evaluation.evaluate import Evaluation

EVALUATED = {"evaluation", "prompts", "sampling", "model", "seed", "train.max_fault_share"}
"""Sections and words of a recipe that an evaluation reads."""
NOT_EVALUATED = {
    "evaluation.every_steps",
    "evaluation.every_problems",
    "prompts.shuffle",
    "sampling.temperature",
    "sampling.top_p",
    "sampling.top_k",
}
"""Words of these sections that it does not."""


def evaluate_here(
    source: str,
    materials: Materials,
    recipe: Path | None,
    values: dict[str, Any],
    settings: Mapping[str, Any],
    checkpoint: str,
) -> Evaluation:
    """`cohort.evaluate`: one model, on rows that are handed in or on the problems of its run or recipe."""
    from rich.console import Console

    from cohort.rewards.of_run import RunRewards

    run = open_run_at(Path(source)) if source and materials.model is None else None
    if checkpoint and run is None:
        raise RunError(f"checkpoint: {source or 'the model'} is not a run folder, so it has no checkpoints; leave it out.")
    file = recipe or (run.recipe_file if run else None)
    for word, key in (("prompts", "prompts.source"), ("rewards", "rewards")):
        if file is None and key not in values:
            raise RecipeError(f"cohort.evaluate needs {word}=...; or recipe=, or a run as model, which name them.")
    given = "prompts.source" in values
    words = name_settings(settings, given)
    if given:  # the run's or recipe's own source, and what belonged to it, is replaced; how a row becomes a prompt stays
        values |= {"prompts.args": {}, "prompts.limit": 0, "prompts.split": "train", "evaluation.sets": {}}
    resolved = make_paths_absolute(load_recipe(file, values=values | words))
    problems = Problems(source or "prompts", resolved, None if given else run)
    refuse_lost_rewards(problems, materials.functions)
    console = Console(stderr=True, highlight=False)
    target = None
    if materials.model is None:
        own = {key: value for key, value in words.items() if key.startswith("model")}
        target = find_target(source, checkpoint, [], problems, own)
    with (
        tempfile.TemporaryDirectory(prefix="cohort-evaluate-") as scratch,
        # Reward workers start before torch is imported, as in training.
        RunRewards.for_run(resolved, materials.functions) as rewards,
    ):
        from cohort.training import build

        if given:
            rows = load_rows(resolved.prompts, resolved.seed, materials.rows)
            data = build.Data([], {"prompts": (resolved.prompts, rows)}, None)
            if "evaluation.max_problems" not in words:
                whole = resolved.evaluation.model_copy(update={"max_problems": len(rows)})
                problems = replace(problems, recipe=resolved.model_copy(update={"evaluation": whole}))
        else:
            data = load_problems(problems)
        if materials.model is not None:
            save_python_model(*materials.model, Path(scratch) / "model")
            target = Target(type(materials.model[0]).__name__, str(Path(scratch) / "model"), None, resolved, None)
        assert target is not None
        if target.description:
            say(console, f"evaluating {target.label}: {target.description}")
        return evaluate_target(console, target, problems, data, rewards).evaluation


def name_settings(settings: Mapping[str, Any], rows_given: bool) -> dict[str, Any]:
    """Settings by their whole name, those of [evaluation] first. One that an evaluation does not read is refused."""
    words: dict[str, Any] = {}
    for key, value in settings.items():
        if "." in key or is_section_value(key, value):
            inner = {f"{key}.{word}": one for word, one in value.items()} if isinstance(value, Mapping) else {key: value}
        else:
            refuse_other_word(key)
            own = key in EvaluationConfig.model_fields
            inner = {f"evaluation.{key}" if own else resolve_undotted(key): value}
        words |= inner
    for word in words:
        idle = word in NOT_EVALUATED or not {word, word.partition(".")[0]} & EVALUATED
        if idle or (rows_given and word in ("evaluation.held_out", "evaluation.sets")):
            raise RecipeError(f"{word}: an evaluation of these problems does not read it; leave it out.")
    return words


def refuse_other_word(key: str) -> None:
    """What others call a word of [evaluation]; in training the same word may mean another."""
    ours = list_translated().get(key, "").partition(" ")[0].rpartition(".")[2]
    ours = "samples" if ours == "group_size" else ours
    if ours in EvaluationConfig.model_fields:
        raise RecipeError(f"{key}: cohort.evaluate calls it {ours}.")
