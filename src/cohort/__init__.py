"""Cohort: GRPO, group-relative policy optimisation, for language models with verifiable rewards.

    import cohort

    def correct(completions, answer, **columns):
        return [float(text.strip().endswith(gold)) for text, gold in zip(completions, answer)]

    run = cohort.train(model="path or hub id", prompts=rows, rewards=[correct], group_size=8, num_steps=200)
    cohort.evaluate(run)

Names are imported on first use, so that `import cohort` and `cohort --help` stay fast.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if sys.platform == "win32":
    _refusal = (
        "Cohort does not run on Windows directly: it needs the file locks, signals and process limits of a POSIX system. "
        "Install it inside WSL 2 (`wsl --install`, then the same commands in Ubuntu)."
    )
    # A command prints a sentence; an import raises an error that can be caught.
    _typed = os.path.basename(sys.argv[0]).removesuffix(".exe") in ("cohort", "-m")
    raise SystemExit(f"error: {_refusal}") if _typed else ImportError(_refusal)

# Must be set before torch is imported. OpenMP threads that spin while waiting slow a small model down to a tenth
# as soon as another process uses one of the cores; sleeping threads cost almost nothing.
_wait_policy_given = "OMP_WAIT_POLICY" in os.environ
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from cohort import rewards
    from cohort.api import evaluate, resume, train
    from cohort.errors import CohortError
    from cohort.evaluation.evaluate import Evaluation
    from cohort.observe.outcome import RunResult
    from cohort.recipe.file import load_recipe
    from cohort.recipe.schema import Recipe
    from cohort.types import Completion, Outcome, Prompt, Rollout, Sampling

_HOMES = {
    "cohort.api": ("evaluate", "resume", "train"),
    "cohort.errors": ("CohortError",),
    "cohort.evaluation.evaluate": ("Evaluation",),
    "cohort.observe.outcome": ("RunResult",),
    "cohort.recipe.file": ("load_recipe",),
    "cohort.recipe.schema": ("Recipe",),
    "cohort.types": ("Completion", "Outcome", "Prompt", "Rollout", "Sampling"),
}
"""Module -> the names that are imported from it on first use; `rewards` is a module."""

__all__ = [
    "CohortError",
    "Completion",
    "Evaluation",
    "Outcome",
    "Prompt",
    "Recipe",
    "Rollout",
    "RunResult",
    "Sampling",
    "evaluate",
    "load_recipe",
    "resume",
    "rewards",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "rewards":
        return import_module("cohort.rewards")
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'cohort' has no attribute {name!r}")
    return getattr(import_module(home), name)
