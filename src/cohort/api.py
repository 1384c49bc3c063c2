"""The Python API: `cohort.train(model=..., prompts=rows, rewards=[function], group_size=8, num_steps=200)`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cohort.algorithms.named import OWN_KINDS
from cohort.data.rows import has_splits, suggest_file
from cohort.errors import RecipeError
from cohort.observe.monitors.base import check_methods
from cohort.observe.outcome import RunResult
from cohort.recipe.describe import describe_start
from cohort.recipe.file import find_recipe_path, load_recipe
from cohort.recipe.schema import Recipe
from cohort.recipe.trl_names import TRL_NAMES
from cohort.recipe.values import PYTHON_MODEL, PYTHON_ROWS, Materials
from cohort.rewards.contract import importable_name
from cohort.session import resume as resume_session
from cohort.session import start as start_session
from cohort.training.launch import is_main_process

if TYPE_CHECKING:
    from cohort.evaluation.evaluate import Evaluation

Reward = Callable[..., Any] | str | Mapping[str, Any]
EXPECTED = "give a function, the name of a built-in reward, or a dict with the fields of [[rewards]]"
PYTHON_PREFIX = "python:"


def train(
    model: Any = None,
    prompts: Any = None,
    rewards: Iterable[Reward] | Reward | None = None,
    recipe: str | Path | None = None,
    monitors: Iterable[Any] | Mapping[str, Any] = (),
    *,
    evaluate_on: Any = None,
    tokenizer: Any = None,
    **settings: Any,
) -> RunResult:
    """Train with GRPO and return the finished run.

    model: a model folder, a hub id, a run folder or its `RunResult` (its final model, else its newest checkpoint), or a loaded
    `PreTrainedModel`. The run trains a copy: an object is kept in the run folder as it is, and is not changed.
    prompts: a list of dicts, a `datasets.Dataset`, a DataFrame of pandas or polars, any iterable of rows, or a path (.jsonl,
    .json, .parquet, .csv, a saved dataset); a `prompt` column (text or chat messages), the other columns go to the reward
    functions by name.
    rewards: functions in TRL's shape, names of built-in rewards, or dicts with the fields of [[rewards]].
    recipe: a TOML file or the name of a built-in recipe to start from.
    monitors: objects that watch beside those of the recipe, with any of the methods of `cohort.observe.monitors.Monitor`; or a
    dict with words of [monitors].
    evaluate_on: rows or a path to evaluate on before and after, read as the prompts are; or a dict of several such sets by name, each
    rows, a path, or {"prompts": ..., "rewards": ...} with rewards of its own. Without it a share of the prompts is held out.
    tokenizer: of a loaded model; by default the one where the model was loaded from.
    settings: every other keyword is a recipe word (`group_size=8`, or words of a section: `evaluation={"samples": 4}`).
    """
    if recipe is None and (prompts is None or rewards is None):
        missing = "prompts" if prompts is None else "rewards"
        path = {"prompts": "prompts.source", "rewards": "rewards"}[missing]
        if meant := next((word for word in settings if TRL_NAMES.get(word) == path), ""):
            raise RecipeError(f"{meant}: here it is called {missing}; write cohort.train({missing}=...).")
        raise RecipeError(f"cohort.train needs {missing}=...; or give recipe=, a recipe that names them.")
    source, handed_in, materials = hand_in(model, tokenizer, prompts, rewards)
    values = {key: name_functions(key, value) for key, value in settings.items()} | handed_in
    values |= {"model": source} if source else {}
    if isinstance(monitors, Mapping):
        values["monitors"], monitors = dict(monitors), ()
    materials = replace(materials, monitors=check_monitors(monitors))
    file = None if recipe is None else find_recipe_path(recipe)
    resolved = load_recipe(file, values=values)
    if evaluate_on is not None:
        refuse_second_sets(settings, resolved)
        sets, materials = describe_sets(resolved, evaluate_on, materials)
        resolved = load_recipe(file, values=values | {"evaluation.sets": sets})
    if resolved.monitors.console and is_main_process():
        print(describe_start(resolved), flush=True)
    return start_session(resolved, materials)


def resume(
    run: str | os.PathLike[str],
    prompts: Any = None,
    rewards: Iterable[Reward] | Reward = (),
    monitors: Iterable[Any] = (),
    *,
    evaluate_on: Any = None,
) -> RunResult:
    """Go on with a run. Functions that cannot be imported by name (closures, notebook cells) must be handed in again.

    run: its folder, or the `RunResult` of its first part.
    prompts, evaluate_on: rows that JSON could not keep with the run; others need not be given again.
    rewards: a part whose `name` is not that of its function is handed in as it was to `cohort.train`, as a dict with both.
    monitors: those that the recipe names watch again; objects watch if they are handed in again.
    """
    functions: dict[str, Callable[..., Any]] = {}
    sets = {} if evaluate_on is None else name_sets(evaluate_on)
    own = [
        entry for name, one in sets.items() for entry in list_rewards(one.get("rewards", ()), functions, f"evaluate_on.{name}")
    ]
    for entry in [*list_rewards(rewards, functions), *own]:
        if entry.get("function") in functions:  # importable by now, perhaps, but not when the run began
            functions.setdefault(f"{PYTHON_PREFIX}{entry['name']}", functions[entry["function"]])
    rows = {name: one["prompts"] for name, one in sets.items() if "prompts" in one}
    return resume_session(os.fspath(run), Materials(prompts, functions, check_monitors(monitors), rows))


def evaluate(
    model: Any,
    prompts: Any = None,
    rewards: Iterable[Reward] | Reward | None = None,
    recipe: str | Path | None = None,
    *,
    checkpoint: str | int = "",
    tokenizer: Any = None,
    **settings: Any,
) -> Evaluation:
    """Evaluate a model on problems: pass@k, maj@k, mean@k and greedy accuracy, with intervals, as `cohort evaluate` does.

    model: as for `cohort.train`. Of a run, whatever is not given here is the run's own: its problems, its rewards, how its
    prompts are made. An object is copied through a temporary folder, and is not changed.
    prompts, rewards: as for `cohort.train`; all of the rows are problems.
    recipe: a TOML file or the name of a built-in recipe that says the rest.
    checkpoint: of a run: "final", "last", "best", "start" or a number of steps; by default final, or last where there is none.
    tokenizer: of a loaded model; by default the one where the model was loaded from.
    settings: words of [evaluation] come first (`samples=16, temperature=0.6`); also those of [prompts], [sampling] and [model],
    and `seed`.
    """
    from cohort.tools.evaluate import evaluate_from_python

    if model is None:
        raise RecipeError("cohort.evaluate needs a model: a folder, a hub id, a run or a loaded model.")
    source, values, materials = hand_in(model, tokenizer, prompts, rewards)
    start = None if recipe is None else find_recipe_path(recipe)
    return evaluate_from_python(source, materials, start, values, settings, str(checkpoint))


# -- what a person hands in --------------------------------------------------------------------------------------------


def hand_in(model: Any, tokenizer: Any, prompts: Any, rewards: Any) -> tuple[str, dict[str, Any], Materials]:
    """(model.source, words of the recipe, the objects that a recipe can only name)."""
    words: dict[str, Any] = {}
    functions: dict[str, Callable[..., Any]] = {}
    materials = Materials(functions=functions)
    if rewards is not None:
        words["rewards"] = list_rewards(rewards, functions)
    if prompts is not None:
        words["prompts.source"], rows = name_source(prompts)
        materials = replace(materials, rows=rows)
    if model is not None and not isinstance(model, str | os.PathLike):
        from cohort.training.python_inputs import check_python_model

        check_python_model(model, tokenizer)
        return PYTHON_MODEL, words, replace(materials, model=(model, tokenizer))
    if tokenizer is not None:
        raise RecipeError(
            "tokenizer: a model folder or hub id brings its own; give tokenizer= beside a loaded model, or save it into the "
            "folder: tokenizer.save_pretrained(folder)."
        )
    return "" if model is None else os.fspath(model), words, materials


def name_source(rows: Any) -> tuple[str, Any]:
    """(prompts.source, the rows where they are no path)."""
    return (os.fspath(rows), None) if isinstance(rows, str | os.PathLike) else (PYTHON_ROWS, rows)


def name_sets(evaluate_on: Any) -> dict[str, Mapping[str, Any]]:
    """Set -> its "prompts" (rows or a path) and perhaps "rewards". A single set is called held_out, as a share of the prompts would be."""
    if has_splits(evaluate_on):
        raise RecipeError(
            f"evaluate_on: the dataset has the splits {', '.join(evaluate_on)}; give one of them: evaluate_on=data[...]."
        )
    if not isinstance(evaluate_on, Mapping):
        return {"held_out": {"prompts": evaluate_on}}
    if any(isinstance(rows, list) and rows and not isinstance(rows[0], Mapping) for rows in evaluate_on.values()):
        raise RecipeError("evaluate_on: give a list of rows, or a dict of such lists by name; not one mapping of columns.")
    sets = {name: given if isinstance(given, Mapping) else {"prompts": given} for name, given in evaluate_on.items()}
    for name, given in sets.items():
        if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
            raise RecipeError(f"evaluate_on: {name!r} cannot name a set; use letters, digits, '_', '-' and '.'.")
        rows = given.get("prompts", ())
        if set(given) - {"prompts", "rewards"} or isinstance(rows, Mapping) or not isinstance(rows, os.PathLike | Iterable):
            what = type(evaluate_on[name]).__name__
            raise RecipeError(f'evaluate_on.{name}: give rows, a path, or {{"prompts": ..., "rewards": ...}}; got {what}.')
    if not sets:
        raise RecipeError("evaluate_on: no set in it; give rows, a path, or a dict of such by name.")
    return sets


def refuse_second_sets(settings: Mapping[str, Any], recipe: Recipe) -> None:
    """What would be ignored beside evaluate_on."""
    section = settings.get("evaluation")
    inside = [f"evaluation.{word}" for word in ("sets", "held_out") if isinstance(section, Mapping) and word in section]
    given = [key for key in settings if key in ("held_out", "evaluation.held_out") or key.startswith("evaluation.sets")]
    if given or inside:
        raise RecipeError(
            f"evaluate_on: it names what to evaluate on, and so does {(given + inside)[0]}; leave one of them out."
        )
    if not recipe.evaluation.samples:
        raise RecipeError("evaluate_on: evaluation.samples is 0, which switches evaluation off; leave one of them out.")


def describe_sets(recipe: Recipe, evaluate_on: Any, materials: Materials) -> tuple[dict[str, Any], Materials]:
    """(evaluation.sets, each made into prompts as the training rows are; the objects that they name)."""
    sets: dict[str, Any] = {}
    handed_in, functions = {}, dict(materials.functions)
    for name, given in name_sets(evaluate_on).items():
        if "prompts" not in given:
            raise RecipeError(f'evaluate_on.{name}: no "prompts" in it; give rows or a path beside "rewards".')
        source, rows = name_source(given["prompts"])
        if rows is None and not Path(source).expanduser().exists():
            raise RecipeError(
                f"evaluate_on: {source!r} is no file or folder here{suggest_file(Path(source)) or '.'} A hub dataset or a task needs its "
                f'split: evaluation={{"sets": {{"NAME": {{"source": ..., "split": ...}}}}}}.'
            )
        rewards = list_rewards(given.get("rewards", ()), functions, f"evaluate_on.{name}.rewards")
        own = {"source": source, "args": {}, "limit": 0, "split": "train", "rewards": rewards}
        sets[name] = recipe.prompts.model_dump() | own
        if rows is not None:
            handed_in[name] = rows
    return sets, replace(materials, sets=handed_in, functions=functions)


def check_monitors(monitors: Any) -> list[Any]:
    if not isinstance(monitors, Iterable) or isinstance(monitors, str | Mapping):
        raise RecipeError(f"monitors: give a list of objects with methods of a monitor; got {monitors!r}.")
    watching = list(monitors)
    for index, monitor in enumerate(watching):
        if isinstance(monitor, str):
            raise RecipeError(f"monitors.{index}: {monitor!r} is a name; names go into the recipe: also=[{monitor!r}].")
        check_methods(monitor, f"monitors.{index}")
    return watching


def name_functions(key: str, value: Any) -> Any:
    """A function given for algorithm.advantage, region or aggregation as "module:function", which a resume can import."""
    if key == "algorithm" and isinstance(value, Mapping):
        return {word: name_functions(word, inner) for word, inner in value.items()}
    if not callable(value) or key.removeprefix("algorithm.") not in OWN_KINDS:
        return value
    spec = importable_name(value)
    if spec is None:
        raise RecipeError(
            f"{key}: no other process could import {getattr(value, '__qualname__', value)!r} (a lambda, a closure, a notebook cell, or "
            f'a function of the script itself). Put it into a file, my_module.py, and give {key}="my_module:function".'
        )
    return spec


def list_rewards(rewards: Any, functions: dict[str, Callable[..., Any]], place: str = "rewards") -> list[dict[str, Any]]:
    if callable(rewards) or isinstance(rewards, str | Mapping):
        rewards = [rewards]
    if not isinstance(rewards, Iterable) or isinstance(rewards, bytes):
        raise RecipeError(f"{place}: {EXPECTED}, or a list of these; got {rewards!r}.")
    return [describe_reward(reward, functions, f"{place}.{index}") for index, reward in enumerate(rewards)]


def describe_reward(reward: Any, functions: dict[str, Callable[..., Any]], place: str) -> dict[str, Any]:
    """A [[rewards]] entry. Importable functions are written by name, so that `cohort resume` finds them again."""
    if isinstance(reward, str):
        return {"function": reward}
    if not callable(reward) and not isinstance(reward, Mapping):
        raise RecipeError(f"{place}: {EXPECTED}; got {reward!r}.")
    entry = dict(reward) if isinstance(reward, Mapping) else {"function": reward}
    function = entry.get("function")
    if not callable(function):
        return entry
    name = entry.get("name") or getattr(function, "__name__", type(function).__name__).strip("<>")
    spec = importable_name(function) or f"{PYTHON_PREFIX}{name}"
    if functions.setdefault(spec, function) != function:
        raise RecipeError(f'{place}: two parts share a name ({name}); give one of its own: {{"function": ..., "name": ...}}.')
    return entry | {"function": spec, "name": name}
