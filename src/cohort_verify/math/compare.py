r"""Compares an answer with the reference answer by rules for each kind of answer; a judge compares single expressions.

`ExactJudge`, for the trainer's process, knows exact rational numbers and equal trees and leaves the rest undecided. The judge
of cohort_verify.math.symbolic, in a jailed worker, decides the rest. Each comparison gives True, False, or None for undecided.
docs/math-rewards.md has the rules with examples.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import TypeGuard

from cohort_verify.math.intervals import INEQUALITIES, find_interval, find_variable
from cohort_verify.math.kinds import (
    Group,
    Reading,
    Relation,
    Value,
    Words,
    find_name,
    find_quantity_name,
    find_value,
    has_symbols,
    is_number,
    is_quantity,
)
from cohort_verify.math.tree import Node, find_exact, has_constant, list_symbols, walk
from cohort_verify.math.words import find_time, is_same_time

Decision = bool | None
Sides = tuple[Node, Node]
"""Left and right side of an equation or inequality."""


class ExactJudge:
    """Compares exact rational numbers and trees. Records what it could not read, and on which side."""

    def __init__(self, tolerance: Fraction = Fraction(0)) -> None:
        self.tolerance = tolerance
        self.unread = self.reference_unread = ""
        self.unevaluated = self.evaluates = False
        """`unevaluated`: an answer had the right value but is not a numeral, as the reference answer is. `evaluates`: that
        still counts as right."""

    def compare_evaluated(self, found: Value, gold: Value) -> Decision:
        """Compare values where nothing may be left to evaluate: 95 + 82 and 354/2 are not accepted for the reference answer
        177.
        """
        is_free = gold.denominator in (None, found.denominator)  # the reference answer 10/4 accepts 10/4
        if not is_free and found.node is not None and is_monomial(found.node):  # 36x is no number; that needs no worker
            return False
        decision = self.compare_values(found, gold, self.tolerance)
        return decision if is_free or found.is_numeral else self.refuse_unevaluated(decision)

    def refuse_unevaluated(self, decision: Decision) -> Decision:
        self.unevaluated |= decision is True
        return False if decision and not self.evaluates else decision

    def compare_values(self, found: Value, gold: Value, tolerance: Fraction) -> Decision:
        """Return whether two expressions are the same number, or the same function of their variables."""
        if found.doubtful and found.unit != gold.unit:
            self.unread = "it contains words that are not a unit"
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
            self.reference_unread = gold.refused
        elif found.refused:
            self.unread = found.refused
        return False if gold.refused or found.refused else None

    def compare_relations(self, found: Sides, gold: Sides, directed: bool) -> Decision:
        """Return whether one left - right is a constant multiple of the other; with `directed`, a positive multiple."""
        return True if found == gold else None


def is_monomial(node: Node) -> bool:
    """Return whether the node is a product of letters and numbers other than 0, with at least one letter."""
    kinds = {part.op for part in walk(node)}
    return "symbol" in kinds <= {"symbol", "number", "multiply"} and all(part.number != 0 for part in walk(node))


def all_of(decisions: Iterable[Decision]) -> Decision:
    result: Decision = True
    for decision in decisions:
        if decision is False:
            return False
        result = None if decision is None else result
    return result


def any_of(decisions: Sequence[Decision]) -> Decision:
    return True if True in decisions else (None if None in decisions else False)


# ---------------------------------------------------------------------------------------------------------------------
# Comparing
# ---------------------------------------------------------------------------------------------------------------------


def find_verdict(found: Reading, gold: Reading, judge: ExactJudge) -> str | None:
    """Return right, wrong, unparsed, or unevaluated (right once it is worked out); None for undecided."""
    decision = is_same(found, gold, judge)
    if decision is False and judge.unevaluated:
        judge.evaluates = True
        decision = is_same(found, gold, judge)
        return "unevaluated" if decision else ("wrong" if decision is False else None)
    if decision is False and (judge.unread or judge.reference_unread):
        return "unparsed"
    return {True: "right", False: "wrong"}.get(decision)  # type: ignore[arg-type]


def is_same(found: Reading, gold: Reading, judge: ExactJudge) -> Decision:
    """Return whether `found` answers the question whose answer is `gold`. Not symmetric: `gold` determines the kind of answer."""
    if isinstance(gold, Group) and gold.grouped is not None:
        return any_of([is_same(found, gold.grouped, judge), is_same(found, Group("", gold.items), judge)])
    if isinstance(found, Group) and found.grouped is not None:
        return is_same(found.grouped if isinstance(gold, Value) else Group("", found.items), gold, judge)
    letters = find_letter(found), find_letter(gold)
    if is_kind(found, "choice") or is_kind(gold, "choice"):
        return is_same_choice(found, gold, judge)
    if all(letters):
        return is_same_letter(*letters, marked=isinstance(gold, Words))
    if isinstance(found, Relation) or isinstance(gold, Relation):
        return is_same_relation(found, gold, judge)
    if (wanted := find_time(gold)) is not None:
        if (time := find_time(found)) is not None:
            return is_same_time(time, wanted)
        if math.gcd(wanted.hour, *wanted.rest) > 1 and not is_kind(found, "{}", 1):  # 10:30 is a time, not a ratio
            return False
    if isinstance(found, Words) or isinstance(gold, Words):
        return isinstance(found, Words) and isinstance(gold, Words) and bool(gold.text) and found.text == gold.text
    if isinstance(found, Value) and isinstance(gold, Value):
        differ = bool(found.unit and gold.unit) and found.unit != gold.unit
        return False if differ or differ_in_degrees(found, gold) else judge.compare_evaluated(found, gold)
    return is_same_group(found, gold, judge)


def differ_in_degrees(found: Value, gold: Value) -> bool:
    r"""Return whether one side is in degrees and the other, which contains pi without a degree sign, in radians."""
    return (
        "degree" in (found.unit, gold.unit)
        and found.unit != gold.unit
        and gold.node is not None
        and has_constant(gold.node, "pi")
    )


def is_kind(reading: Reading, kind: str, length: int | None = None) -> TypeGuard[Group]:
    return isinstance(reading, Group) and reading.kind == kind and length in (None, len(reading.items))


# ---------------------------------------------------------------------------------------------------------------------
# Letters
# ---------------------------------------------------------------------------------------------------------------------


def find_letter(reading: Reading) -> str:
    """Return the letter if the answer is a single letter, else ""."""
    if isinstance(reading, Words):
        return reading.text if reading.label else ""
    node = reading.node if isinstance(reading, Value) and not reading.unit else None
    return node.name if node is not None and node.op in ("symbol", "constant") and len(node.name) == 1 else ""


def is_same_letter(found: str, gold: str, marked: bool) -> bool:
    """Compare letters. Case is ignored for a choice, written as (A) or one of A to E; other letters may be variables, and X is
    not x.
    """
    return found == gold or ((marked or gold in "ABCDE") and found.casefold() == gold.casefold())


def is_same_choice(found: Reading, gold: Reading, judge: ExactJudge) -> Decision:
    """Compare a letter with its meaning, on one side or both. Two meanings must not differ."""
    if not is_kind(gold, "choice"):
        assert isinstance(found, Group)
        return is_same(found.items[0 if find_letter(gold) else 1], gold, judge)
    if not is_kind(found, "choice"):
        return is_same(found, gold.items[0 if find_letter(found) else 1], judge)
    if is_number(found.items[1]) and is_number(gold.items[1]):
        return is_same_in_order(found.items, gold.items, judge)
    return is_same(found.items[0], gold.items[0], judge)


# ---------------------------------------------------------------------------------------------------------------------
# Groups
# ---------------------------------------------------------------------------------------------------------------------

DOTS = Words(r"\ldots")
PART_OF_TIME = re.compile(r"0\d*")
"""0, 00 and 05 are parts of a time: a ratio has no zeros and no leading zeros."""


def is_same_group(found: Reading, gold: Reading, judge: ExactJudge) -> Decision:
    if not isinstance(found, Group) or not isinstance(gold, Group):
        inner, wanted = unwrap_single(found), unwrap_single(gold)
        return False if inner is found and wanted is gold else is_same(inner, wanted, judge)
    if gold.kind == "or":
        found, gold = replace(found, kind="" if found.kind == "or" else found.kind), replace(gold, kind="")
    kinds = {found.kind, gold.kind}
    if len(kinds) == 1:
        compare = SAME_KIND.get(found.kind)
        return compare(found, gold, judge) if compare else is_same_in_order(found.items, gold.items, judge)
    if is_kind(found, "{}", 1) and gold.kind != "":
        return is_same(found.items[0], gold, judge)
    if is_kind(gold, "{}", 1) and found.kind != "":
        return is_same(found, gold.items[0], judge)
    if kinds == {"{}", ""}:
        return has_same_items(found, gold, judge)
    return is_same_tuple(found, gold, judge) if kinds == {"()", ""} else False


def unwrap_single(reading: Reading) -> Reading:
    """Return a single value for a group that amounts to one: a set of one member, or a ratio of two numbers."""
    if is_kind(reading, "{}", 1):
        return reading.items[0]
    return (divide(*reading.items) if is_kind(reading, ":", 2) else None) or reading


def is_same_in_order(found: Sequence[Reading], gold: Sequence[Reading], judge: ExactJudge) -> Decision:
    if len(found) != len(gold):
        return False
    return all_of(is_same(left, right, judge) for left, right in zip(found, gold, strict=True))


def has_same_items(found: Group, gold: Group, judge: ExactJudge) -> Decision:
    """Compare members in any order. A repeated member counts once in braces, twice in a bare list."""
    if DOTS in (*found.items, *gold.items):  # dots continue a sequence, so the order counts
        return is_same_in_order(found.items, gold.items, judge)
    if (wanted := list_named_apart(gold)) and not any(isinstance(item, Relation) for item in found.items):
        return is_same_in_order(found.items, wanted, judge)
    table = [[is_same(left, right, judge) for right in gold.items] for left in found.items]
    if found.kind == "{}" or gold.kind == "{}":
        columns = list(zip(*table, strict=True)) if table else [()] * len(gold.items)
        return all_of([any_of(line) for line in [*table, *columns]])
    if len(found.items) != len(gold.items):
        return False
    return True if has_pairing(table, (True,)) else (None if has_pairing(table, (True, None)) else False)


def list_named_apart(gold: Group) -> Sequence[Reading]:
    """Return the values of a reference answer such as x = 1, y = 2, which "2, 1" does not match. Empty for roots x_1, x_2 of
    one equation.
    """
    relations = [item for item in gold.items if isinstance(item, Relation) and set(item.ops) == {"="}]
    names = [find_quantity_name(item.parts[0]) for item in relations]
    apart = {name.partition("_")[0] if name.startswith("x_") else name for name in names if name is not None}
    return [item.parts[-1] for item in relations] if len(apart) == len(gold.items) else ()


def has_pairing(table: list[list[Decision]], accepted: tuple[Decision, ...]) -> bool:
    """Return whether each row can be assigned a column of its own (augmenting paths)."""
    owner: dict[int, int] = {}

    def place(line: int, tried: set[int]) -> bool:
        for column, decision in enumerate(table[line]):
            if decision in accepted and column not in tried:
                tried.add(column)
                if column not in owner or place(owner[column], tried):
                    owner[column] = line
                    return True
        return False

    return all(place(line, set()) for line in range(len(table)))


def is_same_tuple(found: Group, gold: Group, judge: ExactJudge) -> Decision:
    """Compare tuples, also 1, 2, 3 with (1, 2, 3). A pair in parentheses may be an interval, so "1, 2" does not match it."""
    if any(
        isinstance(item, Relation) and find_name(item.parts[0]) for item in (*found.items, *gold.items)
    ):  # x = 1, y = 2 matches (1, 2)
        values = list_unnamed(found)
        return is_same_in_order(values, list_unnamed(gold), judge) if values else False
    return False if is_kind(gold, "()", 2) else is_same_in_order(found.items, gold.items, judge)


def list_unnamed(group: Group) -> Sequence[Reading]:
    """Return the values of x = 1, y = 2 if the names are in alphabetical order, else an empty list."""
    relations = [item for item in group.items if isinstance(item, Relation)]
    if not relations:
        return group.items
    names = [find_name(item.parts[0]) or "" for item in relations if set(item.ops) == {"="}]
    is_usual = len(names) == len(group.items) and all(names) and names == sorted(set(names))
    return [item.parts[-1] for item in relations] if is_usual else ()


def is_same_ratio(found: Group, gold: Group, judge: ExactJudge) -> Decision:
    """Compare ratios part by part or by proportion: 6:8 is 3:4, as 6/8 is 3/4."""
    units = [[item.unit for item in group.items if isinstance(item, Value)] for group in (found, gold)]
    if len(found.items) != len(gold.items) or (len(set(units[0])) > 1 and units[0] != units[1]):  # 1 cm : 5 km is a scale
        return False
    pairs = [
        (divide(left, found.items[0]), divide(right, gold.items[0]))
        for left, right in zip(found.items[1:], gold.items[1:], strict=True)
    ]
    known = [(left, right) for left, right in pairs if left is not None and right is not None]
    if len(known) < len(pairs):
        return is_same_in_order(found.items, gold.items, judge)
    proportional = all_of([judge.compare_values(left, right, judge.tolerance) for left, right in known])
    if all(isinstance(item, Value) and item.denominator is not None for item in gold.items) and not is_in_lowest_terms(found):
        proportional = judge.refuse_unevaluated(proportional)
    return any_of([is_same_in_order(found.items, gold.items, judge), proportional])


def is_in_lowest_terms(ratio: Group) -> bool:
    """Return whether the ratio is like 2:3, not 4:6 or 1:1.5."""
    parts = [item.exact for item in ratio.items if isinstance(item, Value) and item.denominator == 0]
    whole = [int(part) for part in parts if part is not None and part.denominator == 1]
    return len(whole) == len(ratio.items) and math.gcd(*whole) == 1


def divide(top: Reading, bottom: Reading) -> Value | None:
    parts = [
        part for part in (top, bottom) if isinstance(part, Value) and not part.unit and not PART_OF_TIME.fullmatch(part.text)
    ]
    nodes = [part.node for part in parts if part.node is not None]
    if len(nodes) < 2 or find_exact(nodes[1]) == 0:
        return None
    return Value(rf"\frac{{{parts[0].text}}}{{{parts[1].text}}}", Node("divide", tuple(nodes)))


SAME_KIND = {"{}": has_same_items, "": has_same_items, "cup": has_same_items, ":": is_same_ratio}
"""Comparisons of two groups of the same kind, where position by position is not enough."""


# ---------------------------------------------------------------------------------------------------------------------
# Relations
# ---------------------------------------------------------------------------------------------------------------------


def is_same_relation(found: Reading, gold: Reading, judge: ExactJudge) -> Decision:
    if isinstance(found, Relation) and "~" in found.ops:
        return is_same_rounded(found, gold, judge)
    if isinstance(gold, Relation) and "~" in gold.ops:
        place, last = gold.ops.index("~"), gold.parts[-1]
        exact = cut_relation(gold, place) if place or find_name(gold.parts[0]) is None else last
        return any_of([is_same(found, last, judge), is_same(found, exact, judge)])
    if isinstance(found, Relation) and isinstance(gold, Relation):
        return are_same_relations(found, gold, judge)
    if isinstance(gold, Relation):
        wanted = (find_interval(gold) if isinstance(found, Group) else None) or find_value(gold, strict=True)
        return False if wanted is None else is_same(found, wanted, judge)
    assert isinstance(found, Relation)
    if (linked := check_chain(found, judge)) is not False and isinstance(gold, Value) and gold.denominator is not None:
        found = end_with_numeral(found)
    interval = find_interval(found) if isinstance(gold, Group) or set(found.ops) - {"=", "in"} else None
    given = interval or find_value(found, strict=False)
    if (
        linked is False or given is None or (interval is not None and is_kind(gold, ""))
    ):  # 1 < x < 2 is not a list of two numbers
        return False
    return all_of([linked, is_same(given, gold, judge)])


def end_with_numeral(relation: Relation) -> Relation:
    """Turn a chain of equal numbers so that the numeral comes last: 177 = 95 + 82 becomes 95 + 82 = 177."""
    numerals = [part for part in relation.parts if isinstance(part, Value) and part.is_numeral]
    if set(relation.ops) != {"="} or not numerals or not is_number(relation.parts[-1]) or relation.parts[-1].is_numeral:
        return relation
    return Relation((*relation.parts, numerals[-1]), (*relation.ops, "="))


def cut_relation(relation: Relation, place: int) -> Reading:
    return relation.parts[0] if place == 0 else Relation(relation.parts[: place + 1], relation.ops[:place])


def check_chain(relation: Relation, judge: ExactJudge) -> Decision:
    r"""Return whether the numbers of a chain are equal, or correctly rounded: 14/2 = 8 and 5 \\sim 9 do not count as 8 and 9."""
    is_rounded = "~" in relation.ops
    if not is_rounded and set(relation.ops) != {"="}:
        return True
    decisions: list[Decision] = []
    for left, right in pairwise(part for part in relation.parts if is_number(part)):
        units = {left.unit, right.unit}
        if len(units) > 1 and ("" not in units or ("degree" in units and not is_rounded)):
            continue  # 500 cm = 5 m, 30 degrees = pi/6: units are not converted here
        rounding = right.coarse_rounding if is_rounded else right.decimal_rounding
        decisions.append(judge.compare_values(left, replace(right, unit=left.unit), rounding))
    groups = [part for part in relation.parts if isinstance(part, Group) and all(map(is_number, part.items)) and not is_rounded]
    return all_of([*decisions, *(is_same(left, right, judge) for left, right in pairwise(groups))])


def is_same_rounded(found: Relation, gold: Reading, judge: ExactJudge) -> Decision:
    r"""Compare an answer with \approx. sqrt(2) \approx 1.41 answers sqrt(2), and also 1.41 because sqrt(2) rounds to it."""
    place, tail = found.ops.index("~"), found.parts[-1]
    if (linked := check_chain(found, judge)) is not True:
        return linked
    if place == 0 and is_quantity(found.parts[0]) and has_symbols(found.parts[0]):
        return is_same(tail, gold, judge)
    head = cut_relation(found, place)
    exactly = is_same(head, gold, judge)
    precise = find_value(head, strict=False) if isinstance(head, Relation) else head
    wanted = find_value(gold, strict=True) if isinstance(gold, Relation) else gold
    if exactly is True or not (isinstance(precise, Value) and isinstance(tail, Value) and isinstance(wanted, Value)):
        return exactly
    return any_of([exactly, all_of([is_same(tail, wanted, judge), judge.compare_values(precise, tail, tail.rounding)])])


def are_same_relations(found: Relation, gold: Relation, judge: ExactJudge) -> Decision:
    if found == gold:
        return True
    left, right = find_interval(found), find_interval(gold)
    if left is not None and right is not None:
        return find_variable(found) == find_variable(gold) and is_same(left, right, judge)
    if set(found.ops) == set(gold.ops) == {"="}:
        return are_same_equations(found, gold, judge)
    ops = found.ops + gold.ops
    if len(found.ops) == len(gold.ops) == 1 and set(ops) <= set(INEQUALITIES):
        pair, wanted = find_sides(found), find_sides(gold)
        if pair is None or wanted is None or (ops[0] != ops[1] and ops[0] != INEQUALITIES[ops[1]]):
            return False
        decision = judge.compare_relations(pair if ops[0] == ops[1] else pair[::-1], wanted, directed=True)
        return decision if right is None else judge.refuse_unevaluated(decision)  # 2x > 4 is not solved; x > 2 is
    return is_same_in_order(found.parts, gold.parts, judge) if found.ops == gold.ops else False


def are_same_equations(found: Relation, gold: Relation, judge: ExactJudge) -> Decision:
    """Compare equations: by their right sides if the left sides are the same name, else as equations, up to a constant factor."""
    if len(found.ops) == 1 and find_name(found.parts[0]) is None and find_name(found.parts[1]) is not None:  # 5 = x
        found = Relation(found.parts[::-1], found.ops)
    names = find_quantity_name(found.parts[0]), find_quantity_name(gold.parts[0])
    if names[0] is not None and names[0] == names[1]:
        return all_of([check_chain(found, judge), is_same(found.parts[-1], gold.parts[-1], judge)])
    if any(name is not None and name.endswith((")", "]")) for name in names):  # f(4) = 10 is not 2 f(2) = 10
        return False
    pair, wanted = find_sides(found), find_sides(gold)
    if pair is None or wanted is None:
        return is_same_in_order(found.parts, gold.parts, judge)
    if list_symbols(Node("add", pair)) != list_symbols(Node("add", wanted)):
        return False
    decision = judge.compare_relations(pair, wanted, directed=False)
    is_solved = names[1] is not None and is_number(gold.parts[-1])
    return judge.refuse_unevaluated(decision) if is_solved else decision  # 2x = 4 is not solved; x = 2 is


def find_sides(relation: Relation) -> Sides | None:
    first, last = relation.parts[0], relation.parts[-1]
    if not (isinstance(first, Value) and isinstance(last, Value)) or first.doubtful or last.doubtful:
        return None
    return None if first.node is None or last.node is None else (first.node, last.node)
