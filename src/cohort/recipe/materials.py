"""Python objects that a recipe can only name: rows, reward functions, monitors and a model handed to `cohort.train`. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PYTHON_ROWS = "python:rows"
"""Source of prompts, or of an evaluation set, whose rows were handed in from Python."""

PYTHON_MODEL = "python:model"
"""model.source of a run whose model was handed in from Python, until it is kept in the run folder."""


@dataclass(frozen=True)
class Materials:
    rows: Iterable[Mapping[str, Any]] | None = None
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    monitors: Sequence[Any] = ()
    sets: Mapping[str, Iterable[Mapping[str, Any]]] = field(default_factory=dict)
    """Rows of the evaluation sets whose source is PYTHON_ROWS."""
    model: tuple[Any, Any] | None = None
    """A loaded model to start from, and its tokenizer: (model, tokenizer)."""
