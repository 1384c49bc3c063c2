"""The Python API: `cohort.train(model=..., prompts=rows, rewards=[function], group_size=8, num_steps=200)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from cohort.algorithms.own import OWN_KINDS
from cohort.errors import RecipeError
from cohort.observe.monitors.base import check_methods
from cohort.recipe.built_in import recipe_path
from cohort.recipe.file import load_recipe
from cohort.recipe.materials import PYTHON_ROWS, Materials
from cohort.rewards.contract import importable_name
from cohort.session import RunResult
from cohort.session import resume as resume_session
from cohort.session import start as start_session

Reward = Callable[..., Any] | str | Mapping[str, Any]
EXPECTED = "give a function, the name of a built-in reward, or a dict with the fields of [[rewards]]"
PYTHON_PREFIX = "python:"


def train(
    model: str | Path | None = None,
    prompts: Any = None,
    rewards: Iterable[Reward] | Reward | None = None,
    recipe: str | Path | None = None,
    monitors: Iterable[Any] | Mapping[str, Any] = (),
    **settings: Any,
) -> RunResult:
    """Train with GRPO and return the finished run.

    model: a folder or hub id. prompts: a list of dicts, a `datasets.Dataset`, any iterable of rows, or a path; a `prompt`
    column (text or chat messages), the other columns go to the reward functions by name. rewards: functions in TRL's
    shape, names of built-in rewards, or dicts with the fields of [[rewards]]. recipe: a TOML file or the name of a
    built-in recipe to start from. monitors: objects that watch beside those of the recipe, with any of the
    methods of `cohort.observe.monitors.Monitor`; or a dict with words of [monitors]. Every other keyword is a recipe word (`group_size=8`, or words of a section: `evaluation={"samples": 4}`).
    """
    if recipe is None and (prompts is None or rewards is None):
        missing = "prompts" if prompts is None else "rewards"
        raise RecipeError(f"cohort.train needs {missing}=...; or give recipe=, a recipe that names them.")
    values: dict[str, Any] = {key: with_named_functions(key, value) for key, value in settings.items()}
    if model is not None:
        values["model"] = str(model)
    rows: Iterable[Mapping[str, Any]] | None = None
    if isinstance(prompts, str | Path):
        values["prompts.source"] = str(prompts)
    elif prompts is not None:
        values["prompts.source"], rows = PYTHON_ROWS, prompts
    functions: dict[str, Callable[..., Any]] = {}
    if rewards is not None:
        values["rewards"] = reward_entries(rewards, functions)
    if isinstance(monitors, Mapping):
        values["monitors"], monitors = dict(monitors), ()
    watching = checked_monitors(monitors)
    resolved = load_recipe(None if recipe is None else recipe_path(recipe), values=values)
    return start_session(resolved, Materials(rows, functions, watching))


def resume(
    run: str | Path, prompts: Any = None, rewards: Iterable[Reward] | Reward = (), monitors: Iterable[Any] = ()
) -> RunResult:
    """Go on with a run. Functions that cannot be imported by name (closures, notebook cells) must be handed in again.

    A part whose `name` is not that of its function is handed in as it was to `cohort.train`, as a dict with both. Monitors that
    the recipe names watch again; objects watch if they are handed in again.
    """
    functions: dict[str, Callable[..., Any]] = {}
    for entry in reward_entries(rewards, functions):
        if entry.get("function") in functions:  # importable by now, perhaps, but not when the run began
            functions.setdefault(f"{PYTHON_PREFIX}{entry['name']}", functions[entry["function"]])
    return resume_session(run, Materials(prompts, functions, checked_monitors(monitors)))


def checked_monitors(monitors: Any) -> list[Any]:
    if not isinstance(monitors, Iterable) or isinstance(monitors, str | Mapping):
        raise RecipeError(f"monitors: give a list of objects with methods of a monitor; got {monitors!r}.")
    watching = list(monitors)
    for index, monitor in enumerate(watching):
        if isinstance(monitor, str):
            raise RecipeError(f"monitors.{index}: {monitor!r} is a name; names go into the recipe: also=[{monitor!r}].")
        check_methods(monitor, f"monitors.{index}")
    return watching


def with_named_functions(key: str, value: Any) -> Any:
    """A function given for algorithm.advantage, region or aggregation as "module:function", which a resume can import."""
    if key == "algorithm" and isinstance(value, Mapping):
        return {word: with_named_functions(word, inner) for word, inner in value.items()}
    if not callable(value) or key.removeprefix("algorithm.") not in OWN_KINDS:
        return value
    spec = importable_name(value)
    if spec is None:
        raise RecipeError(
            f"{key}: no other process could import {getattr(value, '__qualname__', value)!r} (a lambda, a closure, a notebook cell, or "
            f'a function of the script itself). Put it into a file, my_module.py, and give {key}="my_module:function".'
        )
    return spec


def reward_entries(rewards: Any, functions: dict[str, Callable[..., Any]]) -> list[dict[str, Any]]:
    if callable(rewards) or isinstance(rewards, str | Mapping):
        rewards = [rewards]
    if not isinstance(rewards, Iterable) or isinstance(rewards, bytes):
        raise RecipeError(f"rewards: {EXPECTED}, or a list of these; got {rewards!r}.")
    return [reward_entry(reward, functions, f"rewards.{index}") for index, reward in enumerate(rewards)]


def reward_entry(reward: Any, functions: dict[str, Callable[..., Any]], place: str) -> dict[str, Any]:
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
    functions[spec] = function
    return entry | {"function": spec, "name": name}
