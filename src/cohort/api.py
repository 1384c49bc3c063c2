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
from cohort.recipe.file import find_recipe_path, format_value, list_paths, load_recipe, shorten_path, walk
from cohort.recipe.rules import ENVIRONMENT_REWARD
from cohort.recipe.schema import Recipe
from cohort.recipe.trl_names import TRL_NAMES
from cohort.recipe.values import PYTHON_MODEL, PYTHON_ROWS, Materials
from cohort.rewards.contract import importable_name
from cohort.session import resume as resume_session
from cohort.session import start as start_session
from cohort.training import launch
from cohort.training.launch import is_main_process

if TYPE_CHECKING:
    from cohort.evaluation.evaluate import Evaluation

Reward = Callable[..., Any] | str | Mapping[str, Any]
EXPECTED = "give a function, the name of a built-in reward, or a dict with the fields of [[rewards]]"
PYTHON_PREFIX = "python:"
ARGUMENTS = {
    "model.source": "model",
    "prompts.source": "prompts",
    "rewards": "rewards",
    "evaluation.sets": "evaluate_on",
    "environment.source": "environment",
}
"""Key of a recipe -> the argument of `train` that stands for it."""


def train(
    model: Any = None,
    prompts: Any = None,
    rewards: Iterable[Reward] | Reward | None = None,
    recipe: str | Path | None = None,
    monitors: Iterable[Any] | Mapping[str, Any] = (),
    *,
    environment: Any = None,
    tools: Iterable[Any] = (),
    evaluate_on: Any = None,
    tokenizer: Any = None,
    args: Any = None,
    peft_config: Any = None,
    **settings: Any,
) -> RunResult:
    """Train with GRPO and return the finished run.

    model: a model folder, hub id, run folder or `RunResult` (its final model, or its newest checkpoint), or a loaded
    `PreTrainedModel`. A loaded model is saved in the run folder and not changed; the run trains a copy. "scratch" trains new random
    weights. Or the section, {"source": ..., "lora": {"rank": 16}}.
    prompts: a list of dicts, a `datasets.Dataset`, a pandas or polars DataFrame, any iterable of rows, or a path (.jsonl, .json,
    .parquet, .csv, a saved dataset). Rows have a `prompt` column (text or chat messages); the other columns are passed to the reward
    functions by name.
    rewards: functions with TRL's signature, names of built-in rewards, or dicts with the fields of [[rewards]].
    recipe: a TOML file or the name of a built-in recipe to start from.
    monitors: objects with any method of `cohort.observe.monitors.Monitor`, in addition to the monitors of the recipe; or a dict with
    keys of [monitors].
    environment: a class in which the policy acts in several turns, or a dict of classes that the column `environment` chooses from. A class
    with `get_reward` needs no rewards; a class whose `reset` returns the prompt needs no prompts.
    tools: functions that the policy can call.
    evaluate_on: rows or a path to evaluate on before and after training; or a dict of named sets, each rows, a path, or
    {"prompts": ..., "rewards": ...} with its own rewards. Default: a held-out share of the prompts.
    tokenizer: the tokenizer of a loaded model. Default: the one in the folder or repository the model was loaded from.
    args, peft_config: a `trl.GRPOConfig` and a `peft.LoraConfig`, translated into settings; other keywords override them.
    settings: every other keyword is a recipe key (`group_size=8`) or a section with some of its keys (`evaluation={"samples": 4}`).
    """
    for key in settings:
        if argument := ARGUMENTS.get(TRL_NAMES.get(key, "")):
            raise RecipeError(f"{key}: here it is called {argument}; write cohort.train({argument}=...).")
    functions: dict[str, Any] = {}
    settings = settings | describe_environment(environment, tools, functions)
    prompts = "environment" if prompts is None and recipe is None and environment is not None else prompts
    rewards = add_environment_reward(environment, rewards)
    if recipe is None and (prompts is None or rewards is None):
        missing = "prompts" if prompts is None else "rewards"
        raise RecipeError(f"cohort.train needs {missing}=..., or recipe= with a recipe that names them.")
    if isinstance(model, Mapping):
        model = dict(model)
        settings = {f"model.{key}": value for key, value in model.items() if key != "source"} | settings
        model = model.get("source")
    named = model is not None or {"model.source", "model.scratch"} & {*settings} or "scratch" in settings
    if recipe is None and not named:
        raise RecipeError(
            'cohort.train needs model=...: a folder, a hub id or a loaded model; "scratch" trains new random weights.'
        )
    source, inputs, materials = collect_inputs(model, tokenizer, prompts, rewards)
    values = {key: name_functions(key, value) for key, value in settings.items()}
    if isinstance(monitors, Mapping):
        values["monitors"], monitors = dict(monitors), ()
    translated, notes = translate_arguments(args, peft_config, prompts, inputs, values)
    values = inputs | translated | values | ({"model": source} if source else {})
    materials = replace(materials, monitors=check_monitors(monitors), functions={**materials.functions, **functions})
    file = None if recipe is None else find_recipe_path(recipe)
    resolved = load_recipe(file, values=values)
    if evaluate_on is not None:
        refuse_second_sets(settings, resolved)
        sets, materials = describe_sets(resolved, evaluate_on, materials)
        resolved = load_recipe(file, values=values | {"evaluation.sets": sets})
    if resolved.monitors.console and is_main_process():
        print(*notes, describe_start(resolved), sep="\n", flush=True)
    return start_session(resolved, materials)


def resume(
    run: str | os.PathLike[str],
    prompts: Any = None,
    rewards: Iterable[Reward] | Reward = (),
    monitors: Iterable[Any] = (),
    *,
    environment: Any = None,
    tools: Iterable[Any] = (),
    evaluate_on: Any = None,
) -> RunResult:
    """Resume an interrupted run and return the finished run.

    run: its folder, or the `RunResult` of the interrupted run.
    prompts, evaluate_on: only for rows that could not be saved as JSON in the run folder.
    rewards: functions that cannot be imported by name (closures, notebook cells) must be passed again; a part with its own `name` as a
    dict with "function" and "name".
    environment, tools: as rewards, for classes and functions that cannot be imported by name.
    monitors: objects must be passed again; monitors in the recipe start by themselves.
    """
    functions: dict[str, Callable[..., Any]] = {}
    sets = {} if evaluate_on is None else name_sets(evaluate_on)
    own = [
        entry for name, one in sets.items() for entry in list_rewards(one.get("rewards", ()), functions, f"evaluate_on.{name}")
    ]
    for entry in [*list_rewards(rewards, functions), *own]:
        if entry.get("function") in functions:  # perhaps importable now, but it was not when the run started
            functions.setdefault(f"{PYTHON_PREFIX}{entry['name']}", functions[entry["function"]])
    describe_environment(environment, tools, functions)
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
    """Evaluate a model on problems and return pass@k, maj@k, mean@k and greedy accuracy, with intervals, like `cohort evaluate`.

    model: as for `cohort.train`. For a run, its own problems, rewards and prompt settings are the defaults. A loaded model is copied
    through a temporary folder and not changed.
    prompts, rewards: as for `cohort.train`; every row is a problem.
    recipe: a TOML file or the name of a built-in recipe with the other settings.
    checkpoint: of a run: "final", "last", "best", "start" or a step. Default: final, or last if the run has not finished.
    tokenizer: the tokenizer of a loaded model. Default: the one in the folder or repository the model was loaded from.
    settings: keys of [evaluation] (`samples=16, temperature=0.6`), [prompts], [sampling] and [model], and `seed`. A key that several
    sections have means the one of [evaluation].
    """
    from cohort.tools.evaluate import evaluate_from_python

    if model is None:
        raise RecipeError("cohort.evaluate needs a model: a folder, a hub id, a run or a loaded model.")
    source, values, materials = collect_inputs(model, tokenizer, prompts, rewards)
    start = None if recipe is None else find_recipe_path(recipe)
    return evaluate_from_python(source, materials, start, values, settings, str(checkpoint))


# -- environments --------------------------------------------------------------------------------------------------------


def describe_environment(environment: Any, tools: Iterable[Any], functions: dict[str, Any]) -> dict[str, Any]:
    """The settings of [environment] for these classes and tools; what cannot be imported by name goes into `functions`."""
    found: dict[str, Any] = {}
    if isinstance(environment, Mapping):
        found["environment.sources"] = {
            str(name): name_object(kind, functions, f"environment[{name!r}]") for name, kind in environment.items()
        }
    elif environment is not None:
        found["environment.source"] = name_object(environment, functions, "environment")
    if isinstance(tools, str | Mapping) or not isinstance(tools, Iterable):
        raise RecipeError(f"tools: give a list of functions; got {tools!r}.")
    if named := [name_object(tool, functions, "tools") for tool in tools]:
        found["environment.tools"] = named
    return found


def name_object(given: Any, functions: dict[str, Any], place: str) -> str:
    if isinstance(given, str):
        return given
    if not callable(given):
        raise RecipeError(f'{place}: give a class or a function, or its name as "module:Name"; got {given!r}.')
    spec = importable_name(given) or f"{PYTHON_PREFIX}{getattr(given, '__name__', type(given).__name__).strip('<>')}"
    if spec.startswith(PYTHON_PREFIX):
        functions[spec] = given
    return spec


def add_environment_reward(environment: Any, rewards: Any) -> Any:
    """The rewards with that of the environment before them, if its class has one."""
    kinds = [*environment.values()] if isinstance(environment, Mapping) else [environment]
    if not any(hasattr(kind, "get_reward") for kind in kinds):
        return rewards
    others = [] if rewards is None else [rewards] if callable(rewards) or isinstance(rewards, str | Mapping) else list(rewards)
    listed = any(isinstance(one, Mapping) and one.get("function") == ENVIRONMENT_REWARD for one in others)
    return others if listed or ENVIRONMENT_REWARD in others else [{"function": ENVIRONMENT_REWARD}, *others]


# -- arguments as recipe settings --------------------------------------------------------------------------------------


def collect_inputs(model: Any, tokenizer: Any, prompts: Any, rewards: Any) -> tuple[str, dict[str, Any], Materials]:
    """(model.source, recipe settings, the Python objects that a recipe can only name)."""
    values: dict[str, Any] = {}
    functions: dict[str, Callable[..., Any]] = {}
    materials = Materials(functions=functions)
    if rewards is not None:
        values["rewards"] = list_rewards(rewards, functions)
    if prompts is not None:
        values["prompts.source"], rows = name_source(prompts)
        materials = replace(materials, rows=rows)
    if model is not None and not isinstance(model, str | os.PathLike):
        from cohort.training.python_inputs import check_python_model

        check_python_model(model, tokenizer)
        return PYTHON_MODEL, values, replace(materials, model=(model, tokenizer))
    if tokenizer is not None:
        raise RecipeError(
            "tokenizer: a model folder or hub id has its own; give tokenizer= only with a loaded model, or save it into the "
            "folder: tokenizer.save_pretrained(folder)."
        )
    return "" if model is None else os.fspath(model), values, materials


def translate_arguments(
    args: Any, peft_config: Any, prompts: Any, inputs: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """(settings of a GRPOConfig and a LoraConfig that `given` does not override; messages about them)."""
    settings: dict[str, Any] = {}
    notes = []
    if args is not None:
        from cohort.recipe.trl_config import translate_config

        rows = len(prompts) if hasattr(prompts, "__len__") and not isinstance(prompts, str) else None
        steps = {**dict(given.get("train") or {}), **given}.get("num_steps", given.get("train.num_steps"))
        settings, unused = translate_config(args, rows, len(inputs.get("rewards", ())), steps)
        launch.leave_process_group()
        notes = [f"args: without effect on the training, not used: {', '.join(unused)}"] if unused else []
    if peft_config is not None:
        from cohort.recipe.trl_config import translate_lora

        settings |= translate_lora(peft_config)
    paths = list_paths(given)
    kept = {key: value for key, value in settings.items() if key not in paths}
    if "algorithm.name" in paths:  # a preset is named: the choices of the config belong to another one
        kept = {key: value for key, value in kept.items() if not key.startswith("algorithm")}
    fields = {key: walk(key.split("."))[1] for key in kept}
    own = {key: value for key, value in kept.items() if fields[key] is None or fields[key].default != value}
    written = " ".join(f"{shorten_path(key)}={format_value(value)}" for key, value in own.items())
    return kept, [f"args: {written}", *notes] if own else notes


def name_source(rows: Any) -> tuple[str, Any]:
    """(prompts.source, the rows unless they are a path)."""
    return (os.fspath(rows), None) if isinstance(rows, str | os.PathLike) else (PYTHON_ROWS, rows)


def name_sets(evaluate_on: Any) -> dict[str, Mapping[str, Any]]:
    """Set -> its "prompts" (rows or a path) and perhaps "rewards". A single set is named held_out."""
    if has_splits(evaluate_on):
        raise RecipeError(
            f"evaluate_on: the dataset has the splits {', '.join(evaluate_on)}; give one of them: evaluate_on=data[...]."
        )
    if not isinstance(evaluate_on, Mapping):
        return {"held_out": {"prompts": evaluate_on}}
    if set(evaluate_on) == {"prompts", "rewards"}:
        raise RecipeError('evaluate_on: give the set a name: evaluate_on={"test": {"prompts": ..., "rewards": ...}}.')
    if any(isinstance(rows, list) and rows and not isinstance(rows[0], Mapping) for rows in evaluate_on.values()):
        raise RecipeError("evaluate_on: give a list of rows or a dict of named lists, not a mapping of columns.")
    sets = {name: given if isinstance(given, Mapping) else {"prompts": given} for name, given in evaluate_on.items()}
    for name, given in sets.items():
        if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
            raise RecipeError(f"evaluate_on: {name!r} is not a valid name of a set; use letters, digits, '_', '-' and '.'.")
        rows, unknown = given.get("prompts", ()), [key for key in given if key not in ("prompts", "rewards")]
        if unknown or isinstance(rows, Mapping) or not isinstance(rows, os.PathLike | Iterable):
            what = f"the key {unknown[0]!r}" if unknown else f"{type(rows).__name__} as prompts"
            raise RecipeError(f'evaluate_on.{name}: give rows, a path, or {{"prompts": ..., "rewards": ...}}; got {what}.')
    if not sets:
        raise RecipeError("evaluate_on: it is empty; give rows, a path, or a dict of named sets.")
    return sets


def refuse_second_sets(settings: Mapping[str, Any], recipe: Recipe) -> None:
    """Refuse settings that evaluate_on would override."""
    section = settings.get("evaluation")
    inside = [f"evaluation.{key}" for key in ("sets", "held_out") if isinstance(section, Mapping) and key in section]
    given = [key for key in settings if key in ("held_out", "evaluation.held_out") or key.startswith("evaluation.sets")]
    if given or inside:
        raise RecipeError(f"evaluate_on: {(given + inside)[0]} also chooses the evaluation set; leave one of them out.")
    if not recipe.evaluation.samples:
        raise RecipeError("evaluate_on: evaluation.samples is 0, which switches evaluation off; leave one of them out.")


def describe_sets(recipe: Recipe, evaluate_on: Any, materials: Materials) -> tuple[dict[str, Any], Materials]:
    """(evaluation.sets, with the prompt settings of the training rows; the objects that they name)."""
    sets: dict[str, Any] = {}
    handed_in, functions = {}, dict(materials.functions)
    for name, given in name_sets(evaluate_on).items():
        if "prompts" not in given:
            raise RecipeError(f'evaluate_on.{name}: "prompts" is missing; give rows or a path together with "rewards".')
        source, rows = name_source(given["prompts"])
        if rows is None and not Path(source).expanduser().exists():
            raise RecipeError(
                f"evaluate_on: {source!r} is not a file or folder here{suggest_file(Path(source)) or '.'} For a hub dataset or a task give its "
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
            raise RecipeError(f"monitors.{index}: {monitor!r} is a name; set it in the recipe: also=[{monitor!r}].")
        check_methods(monitor, f"monitors.{index}")
    return watching


def name_functions(key: str, value: Any) -> Any:
    """Replace a function given for algorithm.advantage, region or aggregation with "module:function", which a resume can import."""
    if key == "algorithm" and isinstance(value, Mapping):
        return {name: name_functions(name, inner) for name, inner in value.items()}
    if not callable(value) or key.removeprefix("algorithm.") not in OWN_KINDS:
        return value
    spec = importable_name(value)
    if spec is None:
        raise RecipeError(
            f"{key}: other processes cannot import {getattr(value, '__qualname__', value)!r} (a lambda, a closure, a notebook cell, or "
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
    """A [[rewards]] entry. Importable functions are given by name, so that `cohort resume` finds them."""
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
        raise RecipeError(
            f'{place}: two parts share a name ({name}); give one of them another name: {{"function": ..., "name": ...}}.'
        )
    return entry | {"function": spec, "name": name}
