"""Compares a program's values and standard output with the expected ones, on the host.

Only exact built-in types take part, so no `__eq__` of the program runs here. The walk is a loop over the expected value and
compares lengths first: a program cannot make it deeper or longer than the test's author did. It differs from Python's `==` in
two ways: a bool is never a number (1 is not True, also as a key or in a set), and nan equals nan.
"""

from __future__ import annotations

import cmath
import math
import re
from collections.abc import Collection
from itertools import chain
from typing import Any, Literal

Rule = Literal["strict", "value", "json", "truthy", "falsy"]
"""How a returned value is compared with the expected one.

    strict  the same type at every place: int is not float, list is not tuple, set is not frozenset
    value   as Python's ==: numbers by value, set like frozenset
    json    as value, and a tuple equals a list, because JSON has no tuples
    truthy  for `assert f(x)`: anything but None, False, zero and empty values
    falsy   for `assert not f(x)`
"""

MAX_DEPTH = 90
MAX_NODES = 1_000_000
"""Limits on the depth and number of values in a test's arguments and expected value, slightly below those of the jail's pipe."""
MAX_KEY_DEPTH = 20
"""Limit on the nesting of a tuple or frozenset used as a key or member, whose hash is recursive."""

NUMBERS = (int, float, complex)
SCALARS = (bool, int, float, complex, str, bytes)
LISTS = (list, tuple)
SETS = (set, frozenset)
CONTAINERS = (*LISTS, *SETS, dict)
PLAIN_TYPES = (*SCALARS, *CONTAINERS, type(None))
DIGITS_AND_POINT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,4})?")
MAX_NUMBER_CHARS = 400


class TooDeep(ValueError):
    """A key or set member is nested deeper than MAX_KEY_DEPTH."""


# ---------------------------------------------------------------------------------------------------------------------
# Values
# ---------------------------------------------------------------------------------------------------------------------


def holds(rule: Rule, value: Any, expected: Any = None, tolerance: float = 0.0) -> bool:
    """Return whether a returned plain value satisfies a test."""
    if rule in ("truthy", "falsy"):
        return type(value) in PLAIN_TYPES and bool(value) is (rule == "truthy")
    return same_value(value, expected, rule, tolerance)


def same_value(value: Any, expected: Any, rule: Rule = "strict", tolerance: float = 0.0) -> bool:
    """Return whether two plain values are equal under `rule`. Floats may differ by tolerance * max(1, |expected|)."""
    pending = [(value, expected)]
    visited = 0
    while pending:
        left, right = pending.pop()
        visited += 1
        if visited > MAX_NODES or not are_comparable(type(left), type(right), rule):
            return False
        if isinstance(right, CONTAINERS):
            pairs = pair_parts(left, right, rule)
            if pairs is None:
                return False
            pending += pairs
        elif not same_scalar(left, right, tolerance):
            return False
    return True


def pair_parts(left: Any, right: Any, rule: Rule) -> list[tuple[Any, Any]] | None:
    """Return the items of two containers in pairs, or None if the containers already differ. Members of sets are compared here."""
    if len(left) != len(right):
        return None
    if isinstance(right, LISTS):
        return list(zip(left, right, strict=True))
    try:
        found, wanted = ({make_key(key, rule): key for key in side} for side in (left, right))
    except TooDeep:
        return None
    if found.keys() != wanted.keys():
        return None
    if isinstance(right, SETS):
        return []
    # If the rule calls two keys of a dict equal, one value would be lost.
    return [(left[found[key]], right[wanted[key]]) for key in wanted] if len(found) == len(left) else None


def are_comparable(left: type, right: type, rule: Rule) -> bool:
    """Return whether values of these types can be equal. Values that are not plain equal nothing."""
    if left is right or rule == "strict":
        return left is right and right in PLAIN_TYPES
    families = (NUMBERS, SETS, LISTS) if rule == "json" else (NUMBERS, SETS)
    return any(left in family and right in family for family in families)


def same_scalar(left: Any, right: Any, tolerance: float) -> bool:
    if left == right or (left != left and right != right):
        return True
    if not tolerance or type(left) not in NUMBERS or type(right) not in NUMBERS or float not in (type(left), type(right)):
        return False
    try:
        return cmath.isfinite(left) and cmath.isfinite(right) and bool(abs(left - right) <= tolerance * max(1.0, abs(right)))
    except OverflowError:  # an integer beyond the range of floats
        return False


def make_key(item: Any, rule: Rule, depth: int = 0) -> Any:
    """Return a hashable key, equal for two members exactly if the rule calls them equal."""
    if depth > MAX_KEY_DEPTH:
        raise TooDeep
    kind = type(item)
    if kind in NUMBERS:
        name = kind.__name__ if rule == "strict" else "number"
        return (name, "nan") if item != item else (name, item)
    if kind is tuple:
        return ("tuple", tuple(make_key(part, rule, depth + 1) for part in item))
    if kind is frozenset:
        return ("frozenset", frozenset(make_key(part, rule, depth + 1) for part in item))
    if item is None or kind in SCALARS:
        return (kind.__name__, item)
    raise TooDeep


def find_plain_problem(value: Any) -> str:
    """Return why a value of a test cannot be sent to the jail or compared, or ""."""
    level: list[Any] = [value]
    visited, depth = 1, 0
    while level:
        if depth > MAX_DEPTH:
            return f"it is nested deeper than {MAX_DEPTH}, or contains itself"
        for item in level:
            if type(item) not in PLAIN_TYPES:
                return (
                    f"a value of type {type(item).__name__} is not plain data (None, bool, int, float, complex, str, bytes, "
                    "list, tuple, set, frozenset, dict)"
                )
        try:
            for key in (part for item in level if isinstance(item, (*SETS, dict)) for part in item):
                make_key(key, "strict")
        except TooDeep:
            return f"a key or a member of a set is nested deeper than {MAX_KEY_DEPTH}"
        below: list[Collection[Any]] = [item for item in level if isinstance(item, CONTAINERS)]
        below += [item.values() for item in level if isinstance(item, dict)]
        # Counted before copying: a structure with shared parts can be exponentially larger than it looks.
        visited += sum(map(len, below))
        if visited > MAX_NODES:
            return f"it holds more than {MAX_NODES} values"
        level, depth = list(chain.from_iterable(below)), depth + 1
    return ""


# ---------------------------------------------------------------------------------------------------------------------
# Standard output
# ---------------------------------------------------------------------------------------------------------------------


def same_output(printed: str, expected: str, tolerance: float = 0.0) -> bool:
    """Return whether two outputs are equal, ignoring white space at the ends of lines and empty lines at the end.

    With a tolerance, words that are both decimal numbers may differ by tolerance * max(1, |expected|), and the white space
    between words may differ.
    """
    left, right = split_lines(printed), split_lines(expected)
    if left == right:
        return True
    if not tolerance or len(left) != len(right):
        return False
    words = [(one.split(), other.split()) for one, other in zip(left, right, strict=True)]
    return all(
        len(one) == len(other) and all(same_word(*pair, tolerance) for pair in zip(one, other, strict=True))
        for one, other in words
    )


def split_lines(text: str) -> list[str]:
    """Split at \\n only. Other line breaks known to Python do not end a line."""
    lines = [line.rstrip(" \t\r\f\v") for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def same_word(left: str, right: str, tolerance: float) -> bool:
    if left == right:
        return True
    found, wanted = read_number(left), read_number(right)
    return found is not None and wanted is not None and abs(found - wanted) <= tolerance * max(1.0, abs(wanted))


def read_number(word: str) -> float | None:
    """Return a finite decimal number, or None: "nan", "inf" and "1_000" are words."""
    if len(word) > MAX_NUMBER_CHARS or not word.isascii() or not DIGITS_AND_POINT.fullmatch(word):
        return None
    number = float(word)
    return number if math.isfinite(number) else None
