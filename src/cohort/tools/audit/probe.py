"""Runs in the worker: does the function change what it is given? The trainer hands the same lists to other rewards."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable
from typing import Any

from cohort.base.importing import load_function


def leaves_arguments(audited: str, given: dict[str, Any], **offered: Any) -> Any:
    """1.0 per completion where the call of `audited` left its arguments as they were, else 0.0."""
    before = copy.deepcopy(given)
    count = len(given["completions"]) if "completions" in given else 1
    result = load_function(audited)(**given, **offered)
    if inspect.isawaitable(result):
        return awaited(result, before, given, count)
    list(result)  # a generator works only when it is read
    return [float(before == given)] * count


async def awaited(result: Awaitable[Any], before: dict[str, Any], given: dict[str, Any], count: int) -> list[float]:
    await result
    return [float(before == given)] * count
