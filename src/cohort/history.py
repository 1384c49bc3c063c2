"""Metric rows, the few questions that checks ask of them, and what a check finds. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Level = Literal["info", "warning", "alarm"]
Row = Mapping[str, Any]

WINDOW = 10
"""Steps that "now" and "at the start" are averaged over."""
PATIENCE = 5
"""Steps before a low value counts as a pattern rather than as the luck of a small batch."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth knowing about a run."""

    key: str
    """Names the check; a monitor shows each key once."""
    level: Level
    what: str
    """What is seen, with the number."""
    why: str
    fix: str
    """What to do about it; empty when there is nothing to do."""

    @property
    def text(self) -> str:
        return " ".join(sentence for sentence in (self.what, self.why, self.fix) if sentence)


@dataclass(frozen=True)
class History:
    """Metric rows with the few questions that checks ask of them."""

    rows: Sequence[Row]
    recipe: Mapping[str, Any] = field(default_factory=dict)
    evaluations: Sequence[Mapping[str, Any]] = ()

    def setting(self, path: str, default: Any = None) -> Any:
        """`train.group_size` of the recipe."""
        node: Any = self.recipe
        for name in path.split("."):
            if not isinstance(node, Mapping) or name not in node:
                return default
            node = node[name]
        return node

    def values(self, name: str, rows: Sequence[Row]) -> list[float]:
        found = (row.get(name) for row in rows)
        return [float(v) for v in found if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)]

    def last(self, name: str, count: int = WINDOW) -> list[float]:
        return self.values(name, self.rows[-count:])

    def now(self, name: str, count: int = WINDOW) -> float | None:
        """Mean over the last steps; None where fewer than PATIENCE of them have the metric."""
        return mean(self.last(name, count))

    def start(self, name: str, count: int = WINDOW) -> float | None:
        return mean(self.values(name, self.rows[:count]))

    @property
    def long_enough(self) -> bool:
        """Start and now do not overlap."""
        return len(self.rows) >= 2 * WINDOW


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if len(values) >= PATIENCE else None


def percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 or share == 0 else f"{100 * share:.1f} %"
