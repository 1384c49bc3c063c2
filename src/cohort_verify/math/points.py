"""The values of expressions at points, to many digits: runs in jailed workers only.

Stricter than a computer algebra system, whose simplifications stop at 15 digits; and nothing is searched for, so nothing hangs.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import chain, combinations, starmap
from typing import Any

import mpmath

from cohort_verify.math.tree import ARITHMETIC, Node, check_size, find_exact, has_constant, list_symbols, walk

DIGITS = 200
SLACK = 50
"""Values are computed to DIGITS digits and more where terms of a sum differ much in size; equal ones agree in all but SLACK
of them. A value whose size falls with the precision it is computed in is a zero."""
POINTS = 8
FEWEST_POINTS = 3
INTEGER_NAMES = frozenset("nkmj")

Point = Mapping[str, Fraction]


def are_equal(left: Node, right: Node, tolerance: Fraction) -> bool | None:
    """Whether two expressions have the same values; None where both are defined nowhere."""
    if has_constant(left, "infty") or has_constant(right, "infty"):
        return find_infinity(left) == find_infinity(right) != 0
    # \log without a base is natural to some and decimal to others; both sides mean the same.
    is_open = any(part.op == "log" and len(part.args) == 1 for side in (left, right) for part in walk(side))
    decisions = [NodePair(left, right, base).is_equal(tolerance) for base in ([None, 10] if is_open else [None])]
    return True if True in decisions else (None if None in decisions else False)


def has_value(node: Node) -> bool:
    if has_constant(node, "infty"):
        return find_infinity(node) != 0
    pair = NodePair(node, node)
    return any(pair.evaluate_all(chain(list_points(pair.names), list_whole_points(pair.names))))


def find_infinity(node: Node) -> int:
    """1 or -1 for what is infinite itself, 0 for anything else."""
    if node.op == "negate":
        return -find_infinity(node.args[0])
    return int(node.op == "constant" and node.name == "infty")


class NodePair:
    """Two expressions of the same variables, and the base that \\log without one has."""

    def __init__(self, left: Node, right: Node, log_base: int | None = None) -> None:
        self.left, self.right, self.log_base = left, right, log_base
        self.names = sorted(list_symbols(left) | list_symbols(right))
        self.digits = DIGITS + math.ceil(0.7 * max(check_size(left), check_size(right)) / DIGITS) * DIGITS

    def evaluate(self, point: Point, times: int = 1) -> tuple[Any, Any] | None:
        """Both values to so many times the digits, or None where one is not defined."""
        place = tuple(point.items())
        left, right = (evaluate(side, place, self.log_base, times * self.digits) for side in (self.left, self.right))
        return None if left is None or right is None else (left, right)

    def evaluate_all(self, points: Iterable[Point]) -> Iterator[tuple[Point, tuple[Any, Any]]]:
        """The points at which both are defined, each with both values."""
        return ((point, pair) for point in points if (pair := self.evaluate(point)) is not None)

    def agrees_at(self, point: Point, pair: tuple[Any, Any]) -> bool:
        """Whether the two values are equal relative to their size; or both zero, which shows in their shrinking with the precision."""
        with mpmath.workdps(self.digits):
            largest = max(map(abs, pair))
            if abs(pair[0] - pair[1]) <= largest * mpmath.mpf(10) ** (SLACK - self.digits):
                return True
        finer = self.evaluate(point, 4)
        with mpmath.workdps(4 * self.digits):
            return finer is not None and bool(max(map(abs, finer)) <= largest * mpmath.mpf(10) ** (-2 * self.digits))

    def is_equal(self, tolerance: Fraction) -> bool | None:
        """Whether the values are the same at all points; None where there are too few that have values."""
        if not self.names:
            return self.is_number_equal(tolerance)
        is_imaginary = has_constant(self.left, "i") or has_constant(self.right, "i")
        agreed, others = 0, []
        for point, pair in self.evaluate_all(list_points(self.names)):
            if not (is_imaginary or (is_real(pair[0]) and is_real(pair[1]))):
                others.append((point, pair))
            elif not self.agrees_at(point, pair):
                return False
            else:
                agreed += 1
        if agreed >= FEWEST_POINTS:
            return True
        if set(self.names) <= INTEGER_NAMES:  # (-1)^n is a number at whole n only
            others = list(self.evaluate_all(list_whole_points(self.names)))
        return None if agreed + len(others) < FEWEST_POINTS else all(starmap(self.agrees_at, others))

    def is_number_equal(self, tolerance: Fraction) -> bool | None:
        pair = self.evaluate({})
        if pair is None:
            return None
        with mpmath.workdps(DIGITS):
            is_near = abs(pair[0] - pair[1]) <= mpmath.mpf(tolerance.numerator) / tolerance.denominator
        return (bool(tolerance) and bool(is_near)) or self.agrees_at({}, pair)

    def is_proportional(self, directed: bool) -> bool:
        """Whether one is the other times a constant (a positive one where the relation has a direction), zero nowhere common."""
        pairs = list(self.evaluate_all(list_points(self.names))) if self.names else []
        with mpmath.workdps(DIGITS):
            quotients = [left / right for _, (left, right) in pairs if right != 0]
        if len(quotients) < FEWEST_POINTS or not all(quotient != 0 and is_real(quotient) for quotient in quotients):
            return False
        if directed and not all(mpmath.re(quotient) > 0 for quotient in quotients):
            return False
        with mpmath.workdps(DIGITS):
            small = mpmath.mpf(10) ** (SLACK - DIGITS)
            return all(abs(one - other) <= abs(one) * small for one, other in combinations(quotients, 2))


# ---------------------------------------------------------------------------------------------------------------------
# Points
# ---------------------------------------------------------------------------------------------------------------------


def list_points(names: Sequence[str]) -> Iterator[Point]:
    """Fixed points with odd fractions, half of them negative: the same question has the same answer on every machine."""
    for place in range(POINTS):
        point = {}
        for name in names:
            digest = hashlib.sha256(f"{name}:{place}".encode()).digest()
            size = Fraction(int.from_bytes(digest[:4], "big") % 2900 + 131, 1009)
            point[name] = -size if digest[4] % 2 and place % 2 else size
        yield point
    yield {name: -Fraction(7 + place, 11) for place, name in enumerate(names)}


def list_whole_points(names: Sequence[str]) -> Iterator[Point]:
    for place in range(1, 8):
        yield {name: Fraction(place + 2 * offset) for offset, name in enumerate(names)}


# ---------------------------------------------------------------------------------------------------------------------
# Values
# ---------------------------------------------------------------------------------------------------------------------

CONSTANTS = {"pi": lambda: +mpmath.pi, "e": lambda: +mpmath.e, "i": lambda: mpmath.mpc(0, 1)}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **ARITHMETIC,
    **{name: getattr(mpmath, name) for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh", "exp", "floor", "ceil")},
    **{f"arc{name}": getattr(mpmath, f"a{name}") for name in ("sin", "cos", "tan")},
    "add": lambda *values: mpmath.fsum(values), "multiply": lambda *values: mpmath.fprod(values), "ln": mpmath.log,
    "factorial": mpmath.factorial, "binomial": mpmath.binomial,
}  # fmt: skip


@functools.lru_cache(maxsize=4096)
def evaluate(node: Node, point: tuple[tuple[str, Fraction], ...], log_base: int | None, digits: int) -> Any:
    """The value at a point, None where there is none; kept: the members of a set are each compared with all of the other."""
    with mpmath.workdps(digits):
        try:
            value = evaluate_node(node, dict(point), log_base)
        except (ZeroDivisionError, ValueError, OverflowError, TypeError, NotImplementedError, mpmath.libmp.NoConvergence):
            return None
        return value if mpmath.isfinite(value) else None


def evaluate_node(node: Node, point: Point, log_base: int | None) -> Any:
    if node.op in ("number", "symbol"):
        number = node.number if node.number is not None else point[node.name]
        return mpmath.mpf(number.numerator) / number.denominator
    if node.op == "constant":
        return CONSTANTS[node.name]()
    first, *others = values = [evaluate_node(arg, point, log_base) for arg in node.args]
    if node.op == "power":
        return raise_to(first, others[0], find_exact(node.args[1]))
    if node.op == "root":
        return find_real_root(first, find_exact(node.args[1])) or first ** (1 / others[0])
    if node.op == "log" and others:
        return mpmath.log(first) / mpmath.log(others[0])
    if node.op == "log":
        return mpmath.log(first) if log_base is None else mpmath.log(first, log_base)
    return FUNCTIONS[node.op](*values)


def raise_to(base: Any, exponent: Any, exact: Fraction | None) -> Any:
    """A power; where its exponent is rational, with the real root of a negative number."""
    if exact is None:
        return base**exponent
    if base == 0 and exact <= 0:
        raise ZeroDivisionError
    if exact.denominator == 1:
        return base ** int(exact)
    root = find_real_root(base, Fraction(exact.denominator))
    return base ** (mpmath.mpf(exact.numerator) / exact.denominator) if root is None else root ** int(exact.numerator)


def is_real(value: Any) -> bool:
    return not isinstance(value, mpmath.mpc) or abs(value.imag) <= abs(value) * mpmath.mpf(10) ** (SLACK - DIGITS)


def find_real_root(inner: Any, degree: Fraction | None) -> Any:
    """The real cube root of -8 is -2. None: the principal value is meant."""
    if degree is None or degree.denominator != 1 or degree % 2 == 0 or degree < 0 or not is_real(inner):
        return None
    real = mpmath.re(inner)
    return -(abs(real) ** (mpmath.mpf(1) / int(degree))) if real < 0 else None
