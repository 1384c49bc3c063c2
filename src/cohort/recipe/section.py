"""What every section of a recipe is: frozen, strict, without NaN; and how a wrong word is answered."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

LARGEST = 1e30
"""Of a number that meets tensors: what is computed with it must stay within float32, which ends at 3.4e38."""


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def refuse_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """True is 1 to Python, and a learning rate of 1 is not what anybody meant by it."""
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, bool) and field.annotation in (int, float):
            raise ValueError(
                f"{str(value).lower()} is no number; give one, for example {field.get_default(call_default_factory=True)}"
            )
        return value

    @field_validator("*", mode="after")
    @classmethod
    def refuse_what_overflows(cls, value: Any) -> Any:
        """A number that float32 cannot hold ends in a traceback, or in steps that are all skipped."""
        if isinstance(value, float) and abs(value) > LARGEST:
            raise ValueError(f"{value:g} is beyond what can be computed with; at most {LARGEST:g} is accepted")
        return value


def suggest_nearest(word: str, known: Iterable[str]) -> str:
    known = list(known)
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    close.sort(key=lambda other: sorted(other) != sorted(word))  # letters that changed places come first
    close = close or [other for other in known if len(word) > 2 and other.startswith(word)]
    return f"; did you mean {close[0]!r}?" if close else ""
