"""`train.stop_when`: conditions on metrics, in words. Imports no torch.

    eval/pass@1 >= 0.95
    reward/success > 0.9 and loss/entropy < 0.05 or loss/kl_per_completion > 20

`and` binds before `or`, as everywhere. Which metrics there are is known above (observe/early_stop.py); here is the grammar.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

SIGNS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
PRINTED = {"≥": ">=", "≤": "<="}
CONDITION = re.compile(rf"(\S+?)\s*({'|'.join([*SIGNS, *PRINTED])})\s*(\S+|\S+ %)")
HOW = 'write a metric, a sign and a number, e.g. "eval/pass@1 >= 0.95"; several with `and`, `or`'


@dataclass(frozen=True)
class Condition:
    metric: str
    sign: str
    limit: float

    def holds(self, row: Mapping[str, Any]) -> bool:
        """In the row of one step; a metric that the row does not have meets no condition."""
        value = row.get(self.metric)
        return isinstance(value, int | float) and SIGNS[self.sign](float(value), self.limit)


def parse_conditions(text: str) -> list[list[Condition]]:
    """Alternatives, each of conditions that must all hold; ValueError says what cannot be read."""
    if not text.strip():
        return []
    if found := re.search(r"[()]", text):
        raise ValueError(f"{found[0]!r} cannot be read: there are no brackets, and `and` binds before `or`; {HOW}")
    return [[parse_condition(one) for one in re.split(r"\s+and\s+", part)] for part in re.split(r"\s+or\s+", text.strip())]


def parse_condition(text: str) -> Condition:
    found = CONDITION.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text.strip()!r} is no condition; {HOW}")
    try:
        limit = float(found[3])
    except ValueError:
        share = "; shares are written as 0.95" if found[3].endswith("%") else ""
        raise ValueError(f"{found[3]!r} is not a number{share}; {HOW}") from None
    if not math.isfinite(limit):
        raise ValueError(f"{found[3]!r} is no limit that a metric could pass; {HOW}")
    return Condition(found[1], PRINTED.get(found[2], found[2]), limit)
