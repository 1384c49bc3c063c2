"""Built-in tasks: functions that make rows with a `prompt`, an `answer` and, where they can, a `demonstration`.

    prompts.source = "task:column_addition"

A task takes `split` and `seed` and its own arguments by name. Nothing here imports torch: rows are also made, and
verifiers also run, in processes that never load a model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from cohort.data.column_addition import column_addition
from cohort.data.json_records import json_records
from cohort.data.word_problems import word_problems
from cohort.errors import PromptError
from cohort.recipe.sections import suggest_nearest

TASKS: dict[str, Callable[..., list[dict[str, Any]]]] = {
    "column_addition": column_addition,
    "json_records": json_records,
    "word_problems": word_problems,
}


def load_task(name: str, split: str, seed: int, args: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Rows of a built-in task."""
    if name not in TASKS:
        raise PromptError(
            f"prompts.source: no built-in task {name!r}{suggest_nearest(name, TASKS)}; known: {', '.join(sorted(TASKS))}"
        )
    known = [parameter for parameter in inspect.signature(TASKS[name]).parameters if parameter not in ("split", "seed")]
    for given in args:
        if given not in known:
            raise PromptError(
                f"prompts.args: task {name} takes no {given!r}{suggest_nearest(given, known)}; it takes {', '.join(known)}"
            )
    return TASKS[name](split=split, seed=seed, **args)
