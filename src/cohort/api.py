"""The Python API: `cohort.train(model=..., prompts=rows, rewards=[function], group_size=8, num_steps=200)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cohort.config import load_recipe
from cohort.errors import RecipeError
from cohort.materials import PYTHON_ROWS
from cohort.rewards.contract import importable_name
from cohort.session import RunResult
from cohort.session import resume as resume_session
from cohort.session import start as start_session

Reward = Callable[..., Any] | str | Mapping[str, Any]


def train(
    model: str | Path | None = None,
    prompts: Any = None,
    rewards: Sequence[Reward] | Reward | None = None,
    recipe: str | Path | None = None,
    **settings: Any,
) -> RunResult:
    """Train with GRPO and return the finished run.

    model: a folder or hub id. prompts: a list of dicts, a `datasets.Dataset`, any iterable of rows, or a path; a `prompt`
    column (text or chat messages), the other columns go to the reward functions by name. rewards: functions in TRL's
    shape, names of built-in rewards, or dicts with the fields of [[rewards]]. recipe: a TOML file to start from. Every
    other keyword is a recipe word (`group_size=8`, or a whole section: `evaluation={"samples": 4}`).
    """
    if recipe is None and (prompts is None or rewards is None):
        missing = "prompts" if prompts is None else "rewards"
        raise RecipeError(f"cohort.train needs {missing}=...; or give recipe=, a TOML file that names them.")
    values: dict[str, Any] = dict(settings)
    if model is not None:
        values["model"] = str(model)
    rows: Iterable[Mapping[str, Any]] | None = None
    if isinstance(prompts, str | Path):
        values["prompts.source"] = str(prompts)
    elif prompts is not None:
        values["prompts.source"], rows = PYTHON_ROWS, prompts
    functions: dict[str, Callable[..., Any]] = {}
    if rewards is not None:
        given = [rewards] if callable(rewards) or isinstance(rewards, str | Mapping) else list(rewards)
        values["rewards"] = [reward_entry(reward, functions) for reward in given]
    resolved = load_recipe(recipe, values=values)
    return start_session(resolved, materials(rows, functions))


def resume(run: str | Path, prompts: Any = None, rewards: Iterable[Callable[..., Any]] = ()) -> RunResult:
    """Go on with a run. Functions that cannot be imported by name (closures, notebook cells) must be handed in again."""
    functions: dict[str, Callable[..., Any]] = {}
    for reward in rewards:
        reward_entry(reward, functions)
    return resume_session(run, materials(prompts, functions))


def materials(rows: Any, functions: Mapping[str, Callable[..., Any]]) -> Any:
    from cohort.build import Materials

    return Materials(rows, functions)


def reward_entry(reward: Reward, functions: dict[str, Callable[..., Any]]) -> dict[str, Any]:
    """A [[rewards]] entry. Importable functions are written by name, so that `cohort resume` finds them again."""
    if isinstance(reward, Mapping):
        entry = dict(reward)
        function = entry.get("function")
        return entry | reward_entry(function, functions) if callable(function) else entry
    if isinstance(reward, str):
        return {"function": reward}
    name = getattr(reward, "__name__", type(reward).__name__).strip("<>")
    spec = importable_name(reward) or f"python:{name}"
    functions[spec] = reward
    return {"function": spec, "name": name}
