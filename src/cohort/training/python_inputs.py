"""Rows and models passed from Python, saved in the run folder so that a resume does not need them again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from cohort.data.rows import load_rows
from cohort.errors import ModelError, RunError
from cohort.observe.run_folder import RunFolder
from cohort.recipe.schema import Recipe
from cohort.recipe.values import Materials


def keep_rows(recipe: Recipe, folder: RunFolder, given: Materials, report: Callable[[str], None]) -> Materials:
    """The materials with all rows loaded: the given ones, which are saved, and those saved before."""
    sets = recipe.evaluation.sets
    kept = folder.read_kept_rows(recipe, given)
    for name, rows in {"": given.rows, **given.sets}.items():
        if rows is None:
            continue
        if name and name not in sets:
            raise RunError(f"evaluate_on: the run has no evaluation set {name!r}; it has: {', '.join(sets) or 'none'}.")
        section, argument = (f"evaluation.sets.{name}", "evaluate_on") if name else ("prompts", "prompts")
        loaded = load_rows(sets[name] if name else recipe.prompts, recipe.seed, rows, section)
        if not folder.keep_rows(loaded, name):
            report(
                f"{argument} has values that JSON cannot store; a resume needs them again: cohort.resume(run, {argument}=rows)."
            )
        kept = replace(kept, sets={**kept.sets, name: loaded}) if name else replace(kept, rows=loaded)
    return replace(given, rows=kept.rows, sets=kept.sets, model=None)


def check_python_model(model: Any, tokenizer: Any) -> None:
    """Refuse a model object that could not be loaded again as the same class. Imports nothing that the object does not use."""
    kind = type(model).__name__
    is_peft = any(parent.__module__.startswith("peft.") for parent in type(model).__mro__)
    if is_peft or getattr(model, "_hf_peft_config_loaded", False):
        raise ModelError(
            f"model: the {kind} has PEFT adapters. Pass model.merge_and_unload(), or the folder of the base as model= and the "
            'adapter as **{"model.lora.adapter": folder, "model.lora.rank": r}.'
        )
    if not hasattr(model, "save_pretrained") or not hasattr(model, "config"):
        raise ModelError(
            f"model: expected a folder, a Hub id, a run folder or a PreTrainedModel of transformers; got a {kind}."
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ModelError(
            f"model: the {kind} has weights on the meta device, which holds no values; load it with from_pretrained."
        )
    if getattr(model, "hf_quantizer", None) is not None or getattr(model, "is_quantized", False):
        raise ModelError(f"model: the {kind} is quantised, but all weights are trained; load it in bfloat16 or float32.")
    from transformers import AutoModelForCausalLM

    found: Any = AutoModelForCausalLM._model_mapping.get(type(model.config), ())
    expected = found if isinstance(found, tuple) else (found,)
    if type(model) not in expected:
        instead = f"loads as {expected[0].__name__}" if expected else "is not loaded as a causal language model"
        raise ModelError(
            f"model: a run loads its model by its config, and {type(model.config).__name__} {instead}, not as {kind}. Load it with "
            "AutoModelForCausalLM; a custom class cannot be trained from an object."
        )
    if tokenizer is None and not getattr(model, "name_or_path", ""):
        raise ModelError(
            "tokenizer: the model does not record where it was loaded from (name_or_path); pass tokenizer= as well."
        )


def save_python_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Save the object and its tokenizer as a model folder, from which the run loads its own copy."""
    from cohort.model.loading import hide_progress_bars, load_tokenizer
    from cohort.training.checkpoint import fill_folder

    hide_progress_bars()
    if tokenizer is None:
        try:
            tokenizer = load_tokenizer(model.name_or_path)
        except (OSError, ValueError, KeyError) as problem:
            first_line = str(problem).strip().partition("\n")[0]
            raise ModelError(
                f"tokenizer: not found at {model.name_or_path!r} ({first_line}); pass tokenizer= as well."
            ) from problem
    with fill_folder(folder) as whole:
        model.save_pretrained(whole)
        tokenizer.save_pretrained(whole)
