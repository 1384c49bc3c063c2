"""What every section of a recipe is: frozen, strict, without NaN; and how a wrong word is answered."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


def nearest(word: str, known: Iterable[str]) -> str:
    known = list(known)
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.6)
    close.sort(key=lambda other: sorted(other) != sorted(word))  # letters that changed places come first
    close = close or [other for other in known if len(word) > 2 and other.startswith(word)]
    return f"; did you mean {close[0]!r}?" if close else ""
