r"""Is one answer the same as another? Rules about shapes; single expressions are left to a judge.

There are two judges: `Quick`, for the trainer, knows exact rational numbers and equal trees and leaves the rest open; the one
of cohort.rewards.math.symbolic, in a jailed worker, decides the rest. Each question has three answers: yes, no, and None for
open. The rules are written down with examples in docs/math-rewards.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Protocol

from cohort.rewards.math.intervals import INEQUALITIES, interval_of, variable_of
from cohort.rewards.math.kinds import Group, Relation, Shape, Value, Words
from cohort.rewards.math.statements import (
    coarse_rounding_of,
    half_a_place,
    has_symbols,
    is_number,
    is_quantity,
    mixed_units,
    name_of_part,
    quantity_name,
    rounding_of,
    shortened,
    sides,
    value_of,
)
from cohort.rewards.math.times import is_of_time, same_time, time_of
from cohort.rewards.math.tree import Node, exact, symbols

Verdict = bool | None


class Judge(Protocol):
    tolerance: Fraction

    def values(self, found: Value, gold: Value, tolerance: Fraction) -> Verdict:
        """Whether two expressions are the same number, or the same function of their variables."""

    def relations(self, found: tuple[Node, Node], gold: tuple[Node, Node], directed: bool) -> Verdict:
        """Whether left - right is a constant multiple of the other one's; directed: a positive multiple."""


class Quick:
    """Exact rational numbers and equal trees. Remembers what it could not read, and on which side."""

    def __init__(self, tolerance: Fraction = Fraction(0)) -> None:
        self.tolerance = tolerance
        self.unread = self.gold_unread = ""

    def values(self, found: Value, gold: Value, tolerance: Fraction) -> Verdict:
        if found.doubtful and found.unit != gold.unit:
            self.unread = "there are words in it that are no unit"
            return False
        if found.node is None or gold.node is None:
            return self.unknown(found, gold)
        if found.node == gold.node:
            return True
        numbers = exact(found.node), exact(gold.node)
        if numbers[0] is not None and numbers[1] is not None:
            return abs(numbers[0] - numbers[1]) <= tolerance
        return None

    def unknown(self, found: Value, gold: Value) -> Verdict:
        if found.text == gold.text and found.unit == gold.unit:
            return True
        if gold.refused:
            self.gold_unread = gold.refused
            return False
        if found.refused:
            self.unread = found.refused
            return False
        return None

    def relations(self, found: tuple[Node, Node], gold: tuple[Node, Node], directed: bool) -> Verdict:
        return True if found == gold else None


def same(found: Shape, gold: Shape, judge: Judge) -> Verdict:
    """Whether `found` is the answer `gold`. Not symmetric: the gold answer says what was asked for."""
    if isinstance(gold, Group) and gold.grouped is not None:
        return any_of([same(found, gold.grouped, judge), same(found, Group("", gold.items), judge)])
    if isinstance(found, Group) and found.grouped is not None:
        return same(found.grouped if isinstance(gold, Value) else Group("", found.items), gold, judge)
    if isinstance(found, Group) and found.kind == "choice" and not (isinstance(gold, Group) and gold.kind == "choice"):
        return same(found.items[0] if letter_of(gold) else found.items[1], gold, judge)
    if letter_of(found) and letter_of(gold):
        return same_letter(found, gold)
    if isinstance(gold, Group) and gold.kind == "choice":
        if isinstance(found, Group) and found.kind == "choice":  # both name a letter, and what it stands for must not differ
            numbers = all(is_number(shape.items[1]) for shape in (found, gold))
            return in_order(found.items, gold.items, judge) if numbers else same(found.items[0], gold.items[0], judge)
        return same(found, gold.items[0 if letter_of(found) else 1], judge)
    if isinstance(found, Relation) or isinstance(gold, Relation):
        return same_relation(found, gold, judge)
    if (time := time_of(found)) is not None and (wanted := time_of(gold)) is not None:
        return same_time(time, wanted)
    if isinstance(found, Words) or isinstance(gold, Words):
        return isinstance(found, Words) and isinstance(gold, Words) and bool(gold.text) and found.text == gold.text
    if isinstance(found, Value) and isinstance(gold, Value):
        if found.unit and gold.unit and found.unit != gold.unit:
            return False
        return judge.values(found, gold, judge.tolerance)
    return same_group(found, gold, judge)


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    result: Verdict = True
    for verdict in verdicts:
        if verdict is False:
            return False
        result = None if verdict is None else result
    return result


def any_of(verdicts: Iterable[Verdict]) -> Verdict:
    result: Verdict = False
    for verdict in verdicts:
        if verdict is True:
            return True
        result = None if verdict is None else result
    return result


# ---------------------------------------------------------------------------------------------------------------------
# Letters
# ---------------------------------------------------------------------------------------------------------------------


def letter_of(shape: Shape) -> str:
    """The letter that an answer is, "" if it is none."""
    if isinstance(shape, Words):
        return shape.text if shape.label else ""
    if isinstance(shape, Value) and shape.node is not None and shape.node.op in ("symbol", "constant") and not shape.unit:
        return shape.node.name if len(shape.node.name) == 1 else ""
    return ""


def same_letter(found: Shape, gold: Shape) -> bool:
    """A choice, marked as (A) or one of the first capitals, has no case; any other may be a variable, and X is not x."""
    left, right = letter_of(found), letter_of(gold)
    return left == right or ((isinstance(gold, Words) or right in "ABCDE") and left.casefold() == right.casefold())


# ---------------------------------------------------------------------------------------------------------------------
# Groups
# ---------------------------------------------------------------------------------------------------------------------


def same_group(found: Shape, gold: Shape, judge: Judge) -> Verdict:
    if not isinstance(found, Group) or not isinstance(gold, Group):
        return same_single(found, gold, judge)
    if gold.kind == "or":
        return same_group(replace(found, kind="") if found.kind == "or" else found, replace(gold, kind=""), judge)
    if found.kind == gold.kind:
        if found.kind in ("{}", "", "cup"):
            return same_items(found, gold, judge)
        if found.kind == ":":
            return same_ratio(found, gold, judge)
        return in_order(found.items, gold.items, judge)
    if found.kind == "{}" and len(found.items) == 1 and gold.kind != "":
        return same(found.items[0], gold, judge)
    if gold.kind == "{}" and len(gold.items) == 1 and found.kind != "":
        return same(found, gold.items[0], judge)
    kinds = {found.kind, gold.kind}
    if kinds == {"{}", ""}:
        return same_items(found, gold, judge)
    if kinds == {"()", ""}:
        return tuple_and_list(found, gold, judge)
    return False


def in_order(found: Sequence[Shape], gold: Sequence[Shape], judge: Judge) -> Verdict:
    if len(found) != len(gold):
        return False
    return all_of(same(left, right, judge) for left, right in zip(found, gold, strict=True))


def same_items(found: Group, gold: Group, judge: Judge) -> Verdict:
    """The same members in any order. In braces a member written twice counts once; in a bare list it counts twice."""
    if DOTS in (*found.items, *gold.items):  # what goes on has an order
        return in_order(found.items, gold.items, judge)
    if (wanted := named_apart(gold)) and not any(isinstance(item, Relation) for item in found.items):
        return in_order(found.items, wanted, judge)
    table = [[same(left, right, judge) for right in gold.items] for left in found.items]
    if found.kind == "{}" or gold.kind == "{}":
        columns = list(zip(*table, strict=True)) if table else [()] * len(gold.items)
        return all_of([any_of(line) for line in [*table, *columns]])
    if len(found.items) != len(gold.items):
        return False
    certain, possible = paired(table, (True,)), paired(table, (True, None))
    return True if certain else (None if possible else False)


DOTS = Words(r"\ldots")


def named_apart(gold: Group) -> Sequence[Shape]:
    """The values of a gold x = 1, y = 2, which "2, 1" does not give; none where the names are the roots x_1, x_2 of one equation."""
    names = [
        quantity_name(item.parts[0]) if isinstance(item, Relation) and set(item.ops) == {"="} else None for item in gold.items
    ]
    apart = {name.partition("_")[0] if name.startswith("x_") else name for name in names if name is not None}
    if None in names or len(apart) < len(names):
        return ()
    return [item.parts[-1] for item in gold.items if isinstance(item, Relation)]


def paired(table: list[list[Verdict]], accepted: tuple[Verdict, ...]) -> bool:
    """Whether each line finds a column of its own (augmenting paths)."""
    owner: dict[int, int] = {}

    def place(line: int, tried: set[int]) -> bool:
        for column, verdict in enumerate(table[line]):
            if verdict in accepted and column not in tried:
                tried.add(column)
                if column not in owner or place(owner[column], tried):
                    owner[column] = line
                    return True
        return False

    return all(place(line, set()) for line in range(len(table)))


def tuple_and_list(found: Group, gold: Group, judge: Judge) -> Verdict:
    """1, 2, 3 for (1, 2, 3) in that order. A pair in parentheses may be an interval, which "1, 2" is not."""
    names = [
        name_of_part(item.parts[0]) if isinstance(item, Relation) else None for group in (found, gold) for item in group.items
    ]
    if any(names):  # x = 1, y = 2 for (1, 2)
        values, wanted = unnamed(found), unnamed(gold)
        return in_order(values, wanted, judge) if values else False
    if gold.kind == "()" and len(gold.items) == 2:
        return False
    return in_order(found.items, gold.items, judge)


def unnamed(group: Group) -> Sequence[Shape]:
    """The values of x = 1, y = 2 where the names are in their usual order; else nothing that could match."""
    relations = [item for item in group.items if isinstance(item, Relation)]
    if not relations:
        return group.items
    names = [name_of_part(item.parts[0]) or "" for item in relations if set(item.ops) == {"="}]
    if len(names) < len(group.items) or not all(names) or names != sorted(set(names)):
        return ()
    return [item.parts[-1] for item in relations]


def same_single(found: Shape, gold: Shape, judge: Judge) -> Verdict:
    """A group against a single value: a set of one member, or a ratio of two."""
    for group, other, found_first in ((found, gold, True), (gold, found, False)):
        if not isinstance(group, Group) or isinstance(other, Group):
            continue
        inner: Shape | None = None
        if group.kind == "{}" and len(group.items) == 1:
            inner = group.items[0]
        if group.kind == ":" and len(group.items) == 2:
            inner = quotient(group.items[0], group.items[1])
        if inner is not None:
            return same(inner, other, judge) if found_first else same(other, inner, judge)
    return False


def same_ratio(found: Group, gold: Group, judge: Judge) -> Verdict:
    """Part by part, or in proportion: 6:8 is 3:4, as 6/8 is 3/4."""
    if len(found.items) != len(gold.items) or mixed_units(found) not in ([], mixed_units(gold)):
        return False
    pairs = [
        (quotient(left, found.items[0]), quotient(right, gold.items[0]))
        for left, right in zip(found.items[1:], gold.items[1:], strict=True)
    ]
    known = [(left, right) for left, right in pairs if left is not None and right is not None]
    if len(known) < len(pairs):
        return in_order(found.items, gold.items, judge)
    proportional = all_of([judge.values(left, right, judge.tolerance) for left, right in known])
    return any_of([in_order(found.items, gold.items, judge), proportional])


def quotient(top: Shape, bottom: Shape) -> Value | None:
    """None where there is a unit, or a part as times have it: 9:30 hours and 9:05 are no fractions."""
    if not isinstance(top, Value) or not isinstance(bottom, Value) or top.unit or bottom.unit:
        return None
    if is_of_time(top) or is_of_time(bottom):
        return None
    if top.node is not None and bottom.node is not None and exact(bottom.node) != 0:
        return Value(rf"\frac{{{top.text}}}{{{bottom.text}}}", Node("divide", (top.node, bottom.node)))
    return None


# ---------------------------------------------------------------------------------------------------------------------
# Relations
# ---------------------------------------------------------------------------------------------------------------------


def same_relation(found: Shape, gold: Shape, judge: Judge) -> Verdict:
    if isinstance(found, Relation) and "~" in found.ops:
        return same_rounded(found, gold, judge)
    if isinstance(gold, Relation) and "~" in gold.ops:
        place = gold.ops.index("~")
        sides = [gold.parts[-1], shortened(gold, place) if place or name_of_part(gold.parts[0]) is None else gold.parts[-1]]
        return any_of([same(found, side, judge) for side in sides])
    if isinstance(found, Relation) and isinstance(gold, Relation):
        return two_relations(found, gold, judge)
    if isinstance(gold, Relation):
        wanted = interval_of(gold) if isinstance(found, Group) else None
        wanted = wanted or value_of(gold, strict=True)
        return False if wanted is None else same(found, wanted, judge)
    assert isinstance(found, Relation)
    if (linked := links_hold(found, judge)) is False:
        return False
    given = interval_of(found) if isinstance(gold, Group) or set(found.ops) - {"=", "in"} else None
    if given is not None and isinstance(gold, Group) and gold.kind == "":
        return False  # 1 < x < 2 is no list of two numbers
    given = given or value_of(found, strict=False)
    return False if given is None else all_of([linked, same(given, gold, judge)])


def links_hold(relation: Relation, judge: Judge) -> Verdict:
    """Whether the numbers of a chain are equal, or rounded where they have decimals: 14/2 = 8 is no way to say 8."""
    if set(relation.ops) != {"="}:
        return True
    numbers = [part for part in relation.parts if is_number(part)]
    verdicts: list[Verdict] = []
    for left, right in pairwise(numbers):
        if left.unit != right.unit and ((left.unit and right.unit) or "degree" in (left.unit, right.unit)):
            continue  # 500 cm = 5 m, 30 degrees = pi/6: nothing is converted here
        verdicts.append(judge.values(left, replace(right, unit=left.unit), half_a_place(right)))
    groups = [part for part in relation.parts if isinstance(part, Group) and all(map(is_number, part.items))]
    return all_of([*verdicts, *(same(left, right, judge) for left, right in pairwise(groups))])


def same_rounded(found: Relation, gold: Shape, judge: Judge) -> Verdict:
    r"""sqrt(2) \approx 1.41 says sqrt(2); for the gold 1.41 it counts if 1.41 is what sqrt(2) rounds to."""
    place = found.ops.index("~")
    tail = found.parts[-1]
    if (linked := rounds_hold(found, judge)) is not True:
        return linked
    if place == 0 and is_quantity(found.parts[0]) and has_symbols(found.parts[0]):
        return same(tail, gold, judge)
    head = shortened(found, place)
    exactly = same(head, gold, judge)
    if exactly is True:
        return True
    precise = value_of(head, strict=False) if isinstance(head, Relation) else head
    wanted = value_of(gold, strict=True) if isinstance(gold, Relation) else gold
    if not (isinstance(precise, Value) and isinstance(tail, Value) and isinstance(wanted, Value)):
        return exactly
    return any_of([exactly, all_of([same(tail, wanted, judge), judge.values(precise, tail, rounding_of(tail))])])


def rounds_hold(relation: Relation, judge: Judge) -> Verdict:
    r"""Whether every number of a chain is what the one before it rounds to: 5 \\sim 9 says nothing."""
    numbers = [part for part in relation.parts if is_number(part)]
    verdicts: list[Verdict] = []
    for left, right in pairwise(numbers):
        if left.unit == right.unit or not (left.unit and right.unit):
            verdicts.append(judge.values(left, replace(right, unit=left.unit), coarse_rounding_of(right)))
    return all_of(verdicts)


def two_relations(found: Relation, gold: Relation, judge: Judge) -> Verdict:
    if found.ops == gold.ops and found.parts == gold.parts:
        return True
    left, right = interval_of(found), interval_of(gold)
    if left is not None and right is not None:
        return variable_of(found) == variable_of(gold) and same(left, right, judge)
    if set(found.ops) == set(gold.ops) == {"="}:
        return two_equations(found, gold, judge)
    if len(found.ops) == len(gold.ops) == 1 and found.ops[0] in INEQUALITIES and gold.ops[0] in INEQUALITIES:
        pair, wanted = sides(found), sides(gold)
        if found.ops[0] == INEQUALITIES[gold.ops[0]] and pair is not None:
            pair = (pair[1], pair[0])
        elif found.ops[0] != gold.ops[0]:
            return False
        return False if pair is None or wanted is None else judge.relations(pair, wanted, directed=True)
    if found.ops == gold.ops:
        return in_order(found.parts, gold.parts, judge)
    return False


def two_equations(found: Relation, gold: Relation, judge: Judge) -> Verdict:
    """The same name on the left: the right sides decide. Otherwise the equations themselves, up to a constant factor."""
    names = quantity_name(found.parts[0]), quantity_name(gold.parts[0])
    if names[0] is not None and names[0] == names[1]:
        return all_of([links_hold(found, judge), same(found.parts[-1], gold.parts[-1], judge)])
    if any(name is not None and name.endswith((")", "]")) for name in names):  # f(4) = 10 is not 2 f(2) = 10
        return False
    pair, wanted = sides(found), sides(gold)
    if pair is None or wanted is None:
        return in_order(found.parts, gold.parts, judge) if len(found.parts) == len(gold.parts) else False
    if symbols(Node("add", pair)) != symbols(Node("add", wanted)):
        return False
    return judge.relations(pair, wanted, directed=False)
