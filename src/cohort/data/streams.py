"""The endless sequence of prompts that a run draws from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from cohort.types import Prompt


class Stream(Protocol):
    """The endless sequence of prompts: PromptStream in order, or InformativeChoice by difficulty."""

    prompts: list[Prompt]

    def take(self, cursor: int, count: int) -> list[Prompt]: ...

    def epoch(self, cursor: int) -> float: ...

    def record(self, verdicts: Mapping[int, tuple[int, int]]) -> None:
        """A step is finished: prompt -> (successes, verdicts) of every group it drew."""
        ...

    def metrics(self) -> dict[str, float]: ...
