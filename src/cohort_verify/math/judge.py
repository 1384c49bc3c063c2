"""The judge of single expressions in the trainer: exact rational numbers and equal trees. cohort_verify.math.symbolic has the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from cohort_verify.math.kinds import Value
from cohort_verify.math.tree import Node

Decision = bool | None
Sides = tuple[Node, Node]
"""Left and right of an equation or inequality."""


class ExactJudge:
    """Exact rational numbers and equal trees. Remembers what it could not read, and on which side."""

    def __init__(self, tolerance: Fraction = Fraction(0)) -> None:
        self.tolerance = tolerance
        self.unread = self.gold_unread = ""
        self.unevaluated = self.evaluates = False
        """Whether something had the right value and was no numeral where the gold is one; and whether that counts."""

    def compare_evaluated(self, found: Value, gold: Value) -> Decision:
        """The same where nothing may be left to evaluate: for a gold that is a number, 95 + 82 and 354/2 are not 177."""
        decision = self.compare_values(found, gold, self.tolerance)
        is_free = gold.denominator in (None, found.denominator)  # 10/4 is written as its gold 10/4 is
        return decision if is_free or found.is_numeral else self.refuse_unevaluated(decision)

    def refuse_unevaluated(self, decision: Decision) -> Decision:
        self.unevaluated |= decision is True
        return False if decision and not self.evaluates else decision

    def compare_values(self, found: Value, gold: Value, tolerance: Fraction) -> Decision:
        """Whether two expressions are the same number, or the same function of their variables."""
        if found.doubtful and found.unit != gold.unit:
            self.unread = "there are words in it that are no unit"
            return False
        if found.node is not None and gold.node is not None:
            if found.node == gold.node:
                return True
            left, right = found.exact, gold.exact
            if left is None or right is None:
                return None
            return abs(left - right) <= tolerance if tolerance else left == right
        if found.text == gold.text and found.unit == gold.unit:
            return True
        if gold.refused:
            self.gold_unread = gold.refused
        elif found.refused:
            self.unread = found.refused
        return False if gold.refused or found.refused else None

    def compare_relations(self, found: Sides, gold: Sides, directed: bool) -> Decision:
        """Whether left - right is a constant multiple of the other one's; directed: a positive multiple."""
        return True if found == gold else None


def all_of(decisions: Iterable[Decision]) -> Decision:
    result: Decision = True
    for decision in decisions:
        if decision is False:
            return False
        result = None if decision is None else result
    return result


def any_of(decisions: Sequence[Decision]) -> Decision:
    return True if True in decisions else (None if None in decisions else False)
