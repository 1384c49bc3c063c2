"""Conditions on one variable as intervals: x > 2, 1 < x <= 2, x != 3, several at once, and sets without some points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import pairwise, starmap

from cohort_verify.math.kinds import (
    EVERY_NUMBER,
    INFINITY,
    MINUS_INFINITY,
    Group,
    Reading,
    Relation,
    Value,
    find_name,
    is_number,
)
from cohort_verify.math.tree import Node

INEQUALITIES = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
"""Inequality signs -> their mirror images."""
BRACKETS = {"<": "()", "<=": "[]"}

End = tuple[Reading, bool]
"""An end of an interval, and whether the interval includes it."""


def find_variable(relation: Relation) -> str:
    return next((name for part in relation.parts if (name := find_name(part) or find_absolute(part))), "")


def find_absolute(reading: Reading) -> str:
    """Return x of |x|, else "". |z| is the modulus of a complex number."""
    node = reading.node if isinstance(reading, Value) and not reading.unit else None
    inner = node.args[0] if node is not None and node.op == "absolute" else None
    return inner.name if inner is not None and inner.op == "symbol" and inner.name != "z" else ""


def split_absolute(parts: Sequence[Reading], op: str) -> Group | None:
    """Return |x| < 3 as (-3, 3) and 1 < |x| as a union; None if the bound is not a positive number."""
    bound = parts[1 if find_absolute(parts[0]) else 0]
    exact = find_number(bound)
    if not is_number(bound) or bound.node is None or bound.node.op == "negate" or (exact is not None and exact <= 0):
        return None
    is_in, opposite = op == "<=", replace(bound, text=f"-{bound.text}", node=Node("negate", (bound.node,)))
    if bound is parts[1]:
        return make_interval((opposite, is_in), (bound, is_in))
    return Group("cup", (make_interval(None, (opposite, is_in)), make_interval((bound, is_in), None)))


def find_number(reading: Reading) -> Fraction | None:
    return reading.exact if isinstance(reading, Value) and not reading.unit else None


def make_interval(low: End | None, high: End | None) -> Group:
    kind = ("[" if low and low[1] else "(") + ("]" if high and high[1] else ")")
    return Group(kind, (low[0] if low else MINUS_INFINITY, high[0] if high else INFINITY))


def find_interval(relation: Relation) -> Group | None:
    """Return 1 < x <= 2 as (1, 2], x >= 3 as [3, oo), x != 2 as a union; None if it is not a condition on one variable."""
    parts, ops = relation.parts, relation.ops
    if ops == ("!=",) and find_name(parts[0]) is not None:
        return Group("cup", (make_interval(None, (parts[1], False)), make_interval((parts[1], False), None)))
    if ops[0] in (">", ">="):
        parts, ops = parts[::-1], tuple(INEQUALITIES.get(op, op) for op in ops[::-1])
    if not set(ops) <= set(BRACKETS):
        return None
    if len(ops) == 1 and any(map(find_absolute, parts)):
        return split_absolute(parts, ops[0])
    if len(ops) == 1 and find_name(parts[0]) is not None:
        parts, ops = (MINUS_INFINITY, *parts), ("<", *ops)
    elif len(ops) == 1:
        parts, ops = (*parts, INFINITY), (*ops, "<")
    if len(ops) != 2 or find_name(parts[1]) is None:
        return None
    return Group(BRACKETS[ops[0]][0] + BRACKETS[ops[1]][1], (parts[0], parts[2]))


def is_condition(reading: Reading) -> bool:
    return isinstance(reading, Relation) and find_interval(reading) is not None


def excludes_point(reading: Reading) -> bool:
    return isinstance(reading, Relation) and reading.ops == ("!=",)


@dataclass
class Span:
    """The intersection of conditions: from the largest lower end to the smallest upper one, without some points."""

    ends: list[End | None] = field(default_factory=lambda: [None, None])
    holes: list[Reading] = field(default_factory=list)

    def narrow(self, part: Reading) -> bool:
        """Add a condition. Returns False if the ends cannot be ordered exactly."""
        if isinstance(part, Relation):
            if excludes_point(part):
                self.holes.append(part.parts[1])
                return True
            part = find_interval(part) or part
        if not isinstance(part, Group) or len(part.items) != 2 or part.kind not in ("()", "[]", "(]", "[)"):
            return False
        for place, infinity in enumerate((MINUS_INFINITY, INFINITY)):
            if part.items[place] != infinity:
                self.ends[place] = choose_tighter(
                    self.ends[place], (part.items[place], part.kind[place] in "[]"), 1 - 2 * place
                )
                if self.ends[place] is None:
                    return False
        return True

    def describe(self, variable: Reading | None) -> Reading | None:
        """Return the span as a relation of the variable, or as an interval; None if undecided."""
        low, high = self.ends
        bottom, top = (find_number(end[0]) if end else None for end in (low, high))
        if low and high and bottom is not None and top is not None and bottom >= top:
            if bottom > top or not (low[1] and high[1]):
                return Group("{}", ())
            return None if self.holes else Group("{}", (low[0],))
        if self.holes:
            return self.divide(bottom, top)
        if variable is None:
            return make_interval(low, high)
        parts = (*([low[0]] if low else []), variable, *([high[0]] if high else []))
        ops = tuple("<=" if end[1] else "<" for end in self.ends if end)
        return Relation(parts, ops) if ops else None

    def divide(self, bottom: Fraction | None, top: Fraction | None) -> Reading | None:
        """Return the intervals between the holes."""
        low, high = self.ends
        points = {find_number(hole): hole for hole in self.holes}
        if None in points or (low and bottom is None) or (high and top is None):
            return None
        places = sorted(place for place in points if place is not None)
        inside = [place for place in places if (bottom is None or place > bottom) and (top is None or place < top)]
        low = (low[0], low[1] and bottom not in points) if low else None
        high = (high[0], high[1] and top not in points) if high else None
        parts = tuple(starmap(make_interval, pairwise([low, *((points[place], False) for place in inside), high])))
        return parts[0] if len(parts) == 1 else Group("cup", parts)


def choose_tighter(old: End | None, new: End, sign: int) -> End | None:
    """Return the tighter of two lower ends (sign 1) or upper ends (-1), or None if they cannot be compared."""
    if old is None or old == new:
        return new
    numbers = find_number(old[0]), find_number(new[0])
    if numbers[0] is None or numbers[1] is None:
        return None
    if numbers[0] == numbers[1]:
        return old if not old[1] else new
    return new if (numbers[1] - numbers[0]) * sign > 0 else old


def intersect(conditions: Sequence[Reading]) -> Reading | None:
    """Return the intersection: x >= 2 and x <= 5 is 2 <= x <= 5. None if undecided."""
    relations = [part for part in conditions if isinstance(part, Relation)]
    span = Span()
    if len(set(map(find_variable, relations))) > 1 or not all(map(span.narrow, conditions)):
        return None
    names = [part for relation in relations for part in relation.parts if find_name(part) is not None]
    return span.describe(names[0] if names else None)


def overlap(conditions: Sequence[Reading]) -> bool:
    """Return whether "x > 2, x < 5" means both at once: neither contains the other, and they overlap."""
    if any(map(excludes_point, conditions)):
        return True
    span = Span()
    if len(conditions) != 2 or not all(map(span.narrow, conditions)):
        return False
    low, high = (find_number(end[0]) if end else None for end in span.ends)
    is_simple = not any(isinstance(part, Relation) and len(part.ops) > 1 for part in conditions)
    return is_simple and low is not None and high is not None and low < high


def join_conditions(items: Sequence[Reading], words: set[str]) -> Reading:
    """Join x >= 2 and x <= 5 into 2 <= x <= 5, and x < 1 or x > 2 into a union. With a comma, overlapping conditions hold at
    once.
    """
    together = "and" in words or ("or" not in words and overlap(items))
    if together and "or" not in words and (left := intersect(items)) is not None:
        return left
    return Group("" if together or any(map(excludes_point, items)) else "cup", tuple(items))


def remove_points(whole: Reading, points: Sequence[Reading]) -> Reading | None:
    r"""Return \mathbb{R} \setminus \{2\} and (0, 5) \setminus \{1, 2\} as unions of intervals."""
    span = Span(holes=list(points))
    is_everything = isinstance(whole, Value) and whole.node == EVERY_NUMBER.node
    return span.describe(None) if is_everything or span.narrow(whole) else None
