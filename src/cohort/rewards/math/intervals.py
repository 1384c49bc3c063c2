"""Conditions on one variable as intervals: x > 2, 1 < x <= 2, x != 3, several of them together, and sets without points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from cohort.rewards.math.kinds import EVERY_NUMBER, INFINITY, MINUS_INFINITY, Group, Relation, Shape, Value
from cohort.rewards.math.statements import name_of_part
from cohort.rewards.math.tree import exact

INEQUALITIES = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
"""Each with its mirror image."""


def variable_of(relation: Relation) -> str:
    return next((name for part in relation.parts if (name := name_of_part(part)) is not None), "")


def interval_of(relation: Relation) -> Shape | None:
    """1 < x <= 2 as (1, 2], x >= 3 as [3, oo), x != 2 as a union; None where it is no condition on one variable."""
    parts, ops = relation.parts, relation.ops
    if ops == ("!=",) and name_of_part(parts[0]) is not None:
        return Group("cup", (Group("()", (MINUS_INFINITY, parts[1])), Group("()", (parts[1], INFINITY))))
    if not set(ops) <= set(INEQUALITIES):
        return None
    if ops[0] in (">", ">="):
        parts, ops = parts[::-1], tuple(INEQUALITIES[op] for op in ops[::-1])
    if set(ops) - {"<", "<="}:
        return None
    brackets = {"<": "()", "<=": "[]"}
    if len(ops) == 1 and name_of_part(parts[0]) is not None:
        return Group("(" + brackets[ops[0]][1], (MINUS_INFINITY, parts[1]))
    if len(ops) == 1 and name_of_part(parts[1]) is not None:
        return Group(brackets[ops[0]][0] + ")", (parts[0], INFINITY))
    if len(ops) == 2 and name_of_part(parts[1]) is not None:
        return Group(brackets[ops[0]][0] + brackets[ops[1]][1], (parts[0], parts[2]))
    return None


def is_condition(shape: Shape) -> bool:
    return isinstance(shape, Relation) and interval_of(shape) is not None


@dataclass
class Span:
    """What several conditions leave: from the largest lower end to the smallest upper one, without some points."""

    low: tuple[Shape, bool] | None = None
    """An end, and whether it belongs to it."""
    high: tuple[Shape, bool] | None = None
    holes: list[Shape] = field(default_factory=list)

    def add(self, part: Shape) -> bool:
        """False where ends cannot be ordered exactly."""
        if isinstance(part, Relation):
            if part.ops == ("!=",):
                self.holes.append(part.parts[1])
                return True
            part = interval_of(part) or part
        if not isinstance(part, Group) or len(part.items) != 2 or part.kind not in ("()", "[]", "(]", "[)"):
            return False
        if part.items[0] != MINUS_INFINITY:
            end = (part.items[0], part.kind[0] == "[")
            if (low := tighter(self.low, end, 1)) is None:
                return False
            self.low = low
        if part.items[1] != INFINITY:
            end = (part.items[1], part.kind[1] == "]")
            if (high := tighter(self.high, end, -1)) is None:
                return False
            self.high = high
        return True

    def shape(self, variable: Shape | None) -> Shape | None:
        """As a relation of the variable, or as an interval; None where it cannot be told."""
        if self.low and self.high:
            ends = number_of(self.low[0]), number_of(self.high[0])
            if ends[0] is not None and ends[1] is not None and ends[0] >= ends[1]:
                if ends[0] > ends[1] or not (self.low[1] and self.high[1]):
                    return Group("{}", ())
                return None if self.holes else Group("{}", (self.low[0],))
        if not self.holes:
            return self.relation(variable) if variable is not None else self.interval(self.low, self.high)
        return self.pieces()

    def relation(self, variable: Shape) -> Shape | None:
        ends = [end for end in (self.low, self.high) if end is not None]
        if not ends:
            return None
        ops = ["<=" if closed else "<" for _, closed in ends]
        if self.low and self.high:
            return Relation((self.low[0], variable, self.high[0]), tuple(ops))
        return Relation((self.low[0], variable) if self.low else (variable, ends[0][0]), (ops[0],))

    @staticmethod
    def interval(low: tuple[Shape, bool] | None, high: tuple[Shape, bool] | None) -> Shape:
        kind = ("[" if low and low[1] else "(") + ("]" if high and high[1] else ")")
        return Group(kind, (low[0] if low else MINUS_INFINITY, high[0] if high else INFINITY))

    def pieces(self) -> Shape | None:
        low, high = self.low, self.high
        bottom, top = (number_of(end[0]) if end else None for end in (low, high))
        points: dict[Fraction, Shape] = {}
        for hole in self.holes:
            if (place := number_of(hole)) is None:
                return None
            points[place] = hole
        if (low and bottom is None) or (high and top is None):
            return None
        if low and bottom in points:
            low = (low[0], False)
        if high and top in points:
            high = (high[0], False)
        inside = [p for p in sorted(points) if (bottom is None or p > bottom) and (top is None or p < top)]
        edges = [low, *((points[place], False) for place in inside), high]
        parts = tuple(self.interval(edges[place], edges[place + 1]) for place in range(len(edges) - 1))
        return parts[0] if len(parts) == 1 else Group("cup", parts)


def tighter(old: tuple[Shape, bool] | None, new: tuple[Shape, bool], sign: int) -> tuple[Shape, bool] | None:
    """The end that leaves less, of two lower ones (sign 1) or upper ones (-1); None where they cannot be compared."""
    if old is None or old == new:
        return new
    numbers = number_of(old[0]), number_of(new[0])
    if numbers[0] is None or numbers[1] is None:
        return None
    if numbers[0] == numbers[1]:
        return old if not old[1] else new
    return new if (numbers[1] - numbers[0]) * sign > 0 else old


def number_of(shape: Shape) -> Fraction | None:
    return exact(shape.node) if isinstance(shape, Value) and shape.node is not None and not shape.unit else None


def all_together(conditions: Sequence[Shape]) -> Shape | None:
    """What is left where all conditions hold: x >= 2 and x <= 5 is 2 <= x <= 5. None where it cannot be told."""
    relations = [part for part in conditions if isinstance(part, Relation)]
    if len({variable_of(part) for part in relations}) > 1:
        return None
    span = Span()
    if not all(span.add(part) for part in conditions):
        return None
    names = [part for relation in relations for part in relation.parts if name_of_part(part) is not None]
    return span.shape(names[0] if names else None)


def meet_between(conditions: Sequence[Shape]) -> bool:
    """Whether "x > 2, x < 5" is meant together: each alone leaves more, and both have a part in common."""
    if any(isinstance(part, Relation) and part.ops == ("!=",) for part in conditions):
        return True
    span = Span()
    if len(conditions) != 2 or not all(span.add(part) for part in conditions) or span.low is None or span.high is None:
        return False
    if any(isinstance(part, Relation) and len(part.ops) > 1 for part in conditions):
        return False
    low, high = number_of(span.low[0]), number_of(span.high[0])
    return low is not None and high is not None and low < high


def joined_conditions(items: Sequence[Shape], words: set[str]) -> Shape:
    """x >= 2 and x <= 5 is 2 <= x <= 5; x < 1 or x > 2 a union. With a comma they are together where they have a part in common."""
    together = "and" in words or ("or" not in words and meet_between(items))
    if together and "or" not in words and (left := all_together(items)) is not None:
        return left
    unequal = any(isinstance(item, Relation) and item.ops == ("!=",) for item in items)
    return Group("" if together or unequal else "cup", tuple(items))


def without_points(whole: Shape, points: Sequence[Shape]) -> Shape | None:
    r"""\mathbb{R} \setminus \{2\} and (0, 5) \setminus \{1, 2\} as unions of intervals."""
    span = Span(holes=list(points))
    return span.shape(None) if (isinstance(whole, Value) and whole.node == EVERY_NUMBER.node) or span.add(whole) else None
