"""Python objects that a recipe can only name: rows, reward functions and monitors handed to `cohort.train`. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PYTHON_ROWS = "python:rows"
"""prompts.source of a run whose rows were handed in from Python."""


@dataclass(frozen=True)
class Materials:
    rows: Iterable[Mapping[str, Any]] | None = None
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    monitors: Sequence[Any] = ()
