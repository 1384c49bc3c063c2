"""Expression trees, their exact value if it is rational, and a bound on their size.

Both are safe in the trainer's process: sizes are limited before anything is computed.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

MAX_BITS = 6000
"""Limit on an exact number in the trainer: about 1,800 digits, which take microseconds."""
MAX_EXPONENT_BITS = 512
"""Limit on the size of an exponent. Only hostile inputs exceed it."""
MAX_FACTORIAL_BITS = 60
MAX_ANGLE_BITS = 3000
MAX_SPAN_BITS = 16_000
"""Limit on the range of terms in a sum: telling 10^4000 + 1 from 10^4000 takes 4,000 digits."""
ANGLES = ("sin", "cos", "tan", "cot", "sec", "csc")


class OutOfBounds(Exception):
    """Too deep, too long or too large for a real answer. No other reader is tried."""


@dataclass(frozen=True)
class Node:
    op: str
    """number, symbol, constant, add, multiply, divide, power, negate, root, factorial, binomial, absolute, log, or a function
    name."""
    args: tuple[Node, ...] = ()
    number: Fraction | None = None
    name: str = ""


def number(value: int | Fraction) -> Node:
    return Node("number", number=Fraction(value))


def join_nodes(op: str, nodes: Sequence[Node]) -> Node:
    """Return the sum or product; a single node is returned as it is."""
    return nodes[0] if len(nodes) == 1 else Node(op, tuple(nodes))


def walk(node: Node) -> Iterator[Node]:
    """Yield the node and all nodes below it."""
    yield node
    for arg in node.args:
        yield from walk(arg)


def list_symbols(node: Node) -> frozenset[str]:
    return frozenset(part.name for part in walk(node) if part.op == "symbol")


def has_constant(node: Node, *names: str) -> bool:
    return any(part.op == "constant" and part.name in names for part in walk(node))


def find_denominator(node: Node, signed: bool = True) -> int | None:
    r"""Return the denominator of a numeral as written: b of a/b, 0 without a fraction bar; None if something is left to
    evaluate.

    Numerals are 3.5, 2\frac13, 3 \times 10^8, -1/2; not 95 + 82, 2^7, -(-7), 3 \times 10. A number that is not normalised (12
    \times 10^3) counts as a fraction over 1.
    """
    if signed and node.op == "negate":
        return find_denominator(node.args[0], signed=False)
    if node.op == "number" or len(node.args) != 2:
        return 0 if node.op == "number" else None
    first, second = node.args
    if signed and first.op == "negate":
        first = first.args[0]
    if node.op == "divide":
        parts = [part for part in (first, second) if part.name != "decimal"]
        whole = [int(part.number) for part in parts if part.number is not None and part.number.denominator == 1]
        return whole[1] if len(whole) == 2 else None
    if node.op != "multiply" or first.number is None or second.op != "power" or second.args[0] != number(10):
        return None
    is_whole = find_denominator(second.args[1]) == 0 and getattr(find_exact(second.args[1]), "denominator", 0) == 1
    return int(not 1 <= first.number < 10) if is_whole else None


def find_exact(node: Node) -> Fraction | None:
    """Return the value of a rational expression; None if it has none, is irrational, or is longer than MAX_BITS."""
    if node.op == "number":
        return node.number
    values = [value for arg in node.args if (value := find_exact(arg)) is not None]
    if node.op not in EXACT or len(values) < len(node.args) or sum(map(count_bits, values)) > 4 * MAX_BITS:
        return None
    try:
        result = EXACT[node.op](*values)
    except ZeroDivisionError:
        return None
    return result if result is not None and count_bits(result) <= MAX_BITS else None


def count_bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def find_power(base: Fraction, exponent: Fraction) -> Fraction | None:
    if exponent.denominator != 1:
        root = find_root(base, Fraction(exponent.denominator))
        return None if root is None else find_power(root, Fraction(exponent.numerator))
    if base == 0:
        return base if exponent > 0 else None  # 0^0 is not a number here
    if abs(base) == 1:
        return base ** (int(exponent) % 2)
    return base ** int(exponent) if abs(exponent) * count_bits(base) <= 2 * MAX_BITS else None


def find_root(inner: Fraction, degree: Fraction) -> Fraction | None:
    """Return the root of perfect powers. Roots of negative numbers are left undecided."""
    if degree.denominator != 1 or not 2 <= degree <= 20 or inner < 0:
        return None
    roots = [find_integer_root(part, int(degree)) for part in (inner.numerator, inner.denominator)]
    return None if roots[0] is None or roots[1] is None else Fraction(roots[0], roots[1])


def find_integer_root(value: int, degree: int) -> int | None:
    low, high = 0, 1 << (value.bit_length() // degree + 1)
    while low < high:
        middle = (low + high) // 2
        if middle**degree < value:
            low = middle + 1
        else:
            high = middle
    return low if low**degree == value else None


def find_factorial(inner: Fraction) -> Fraction | None:
    return Fraction(math.factorial(int(inner))) if inner.denominator == 1 and 0 <= inner <= 500 else None


def find_binomial(top: Fraction, bottom: Fraction) -> Fraction | None:
    if not (top.denominator == bottom.denominator == 1 and 0 <= top <= 1000 and bottom >= 0):
        return None
    return Fraction(math.comb(int(top), int(bottom)))


ARITHMETIC: dict[str, Callable[..., Any]] = {"divide": operator.truediv, "negate": operator.neg, "absolute": abs}
"""Operations that work on exact, high-precision and symbolic numbers alike."""
EXACT: dict[str, Callable[..., Fraction | None]] = {
    **ARITHMETIC,
    "add": lambda *values: sum(values, Fraction(0)),
    "multiply": lambda *values: math.prod(values, start=Fraction(1)),
    "floor": lambda inner: Fraction(math.floor(inner)),
    "ceil": lambda inner: Fraction(math.ceil(inner)),
    "power": find_power,
    "root": find_root,
    "factorial": find_factorial,
    "binomial": find_binomial,
}
LIMITS = {
    **dict.fromkeys(("exp", "sinh", "cosh", "tanh"), MAX_EXPONENT_BITS),
    **dict.fromkeys(("factorial", "binomial"), MAX_FACTORIAL_BITS),
    **dict.fromkeys((*ANGLES, "floor", "ceil"), MAX_ANGLE_BITS),
}
"""Limits on the bits of a function's argument."""


def check_size(node: Node) -> float:
    """Raise OutOfBounds for sizes that no person writes, such as towers of powers. Returns the largest span."""
    spans = [0.0]
    check_bits(bound_bits(node, spans), sys.float_info.max)
    check_bits(max(spans), MAX_SPAN_BITS)
    return max(spans)


def bound_bits(node: Node, spans: list[float]) -> float:
    """Return a bound on the absolute base-2 logarithm of the value; symbols count as small numbers.

    `spans` collects the sizes of terms in sums and function arguments. A small term beside a large one can be lost there, so a
    comparison needs that many more binary digits.
    """
    if node.op == "number":
        value = node.number or Fraction(1)
        return max(math.log2(abs(value.numerator)), math.log2(value.denominator))
    if not node.args:
        return 4.0
    inner = [bound_bits(arg, spans) for arg in node.args]
    if node.op == "power":
        exponent = find_exact(node.args[1])
        if exponent is None or abs(exponent) > 2**64:
            check_bits(inner[1], MAX_EXPONENT_BITS)
            factor = 2.0 ** inner[1]
        else:
            factor = float(abs(exponent))
        return inner[0] * factor if inner[0] < 1e150 else math.inf
    if node.op in ("multiply", "divide"):
        return sum(inner)
    if node.op in ("negate", "absolute", "root"):
        return inner[0]
    spans += inner
    largest = max(inner)
    check_bits(largest, LIMITS.get(node.op, math.inf))
    if node.op == "add":
        return largest + math.log2(len(inner))
    if node.op in ("exp", "sinh", "cosh", "tanh"):
        return 2.0**largest * 2
    if node.op in ("factorial", "binomial"):
        return 2.0 ** inner[0] * (inner[0] + 1) + 64
    return largest + 16


def check_bits(found: float, most: float) -> None:
    if not found <= most:
        raise OutOfBounds("the number is too large")
