"""The kinds of answers: a value, words, a group in brackets, a relation.

cohort_verify.math.readers makes them from text, and cohort_verify.math.compare compares them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeGuard

from cohort_verify.math.tree import ANGLES, Node, find_denominator, find_exact, list_symbols, walk

DOZEN = 12
DECIMALS = re.compile(r"-?\s?[\d,\s]*\.\d+")


@dataclass(frozen=True)
class Value:
    """An expression with its unit. The node is None if it could not be read; then `refused` says why other readers must not
    try.
    """

    text: str
    node: Node | None = None
    unit: str = ""
    refused: str = ""
    doubtful: bool = False
    """The unit may not be one ("versus six"): it counts only if the reference answer has the same."""
    factor: Fraction = Fraction(1)
    """Factor from a percent sign or "million" behind the number. The node already includes it."""

    @property
    def exact(self) -> Fraction | None:
        """The rational number, ignoring the unit."""
        return None if self.node is None else find_exact(self.node)

    @property
    def number_node(self) -> Node | None:
        """The node without the percent sign or "million"."""
        return self.node if self.node is None or self.factor == 1 else self.node.args[0]

    @property
    def denominator(self) -> int | None:
        """The denominator as written (tree.find_denominator); None if something is left to evaluate, as in 5 dozen."""
        return None if self.number_node is None or self.factor == DOZEN else find_denominator(self.number_node)

    @property
    def is_numeral(self) -> bool:
        """Whether nothing is left to evaluate: digits, or a fraction in lowest terms."""
        written, node = self.denominator, self.number_node
        value = find_exact(node) if written and written > 1 and node is not None else None
        return written == 0 or (value is not None and value.denominator == written)

    @property
    def rounding(self) -> Fraction:
        """Half a unit of the last written place."""
        return self.factor / (2 * 10 ** min(len(self.text.partition(".")[2]), 50))

    @property
    def decimal_rounding(self) -> Fraction:
        """The same for a decimal; 0 for a whole number."""
        return self.rounding if DECIMALS.fullmatch(self.text) else Fraction(0)

    @property
    def coarse_rounding(self) -> Fraction:
        """The same, but 1200 may be rounded to hundreds. Numbers with one digit before the zeros, such as 10 or 2000, are
        exact.
        """
        digits = self.text.lstrip("-")
        zeros = len(digits) - len(digits.rstrip("0")) if digits.isdecimal() else 0
        return self.factor * 10 ** min(zeros, 50) / 2 if zeros and len(digits) - zeros > 1 else self.rounding


@dataclass(frozen=True)
class Words:
    """Text without regard to case and spaces, or the letter of a choice."""

    text: str
    label: bool = False


@dataclass(frozen=True)
class Group:
    r"""Several items. kind: "()", "[]", "(]", "[)", "{}" for a set, "" for a bare list, ":" for a ratio, "cup" for a union; for
    a matrix its size and environment ("2x2 matrix").
    """

    kind: str
    items: tuple[Reading, ...]
    grouped: Reading | None = None
    """For "100,200": the number it may also be."""


@dataclass(frozen=True)
class Relation:
    """left (op) right (op) ...; the parts are readings."""

    parts: tuple[Reading, ...]
    ops: tuple[str, ...]


Reading = Value | Words | Group | Relation

INFINITY = Value(r"\infty", Node("constant", name="infty"))
MINUS_INFINITY = Value(r"-\infty", Node("negate", (Node("constant", name="infty"),)))
EVERY_NUMBER = Value(r"\mathbb{R}", Node("symbol", name=r"\mathbb R"))

# ---------------------------------------------------------------------------------------------------------------------
# Names
# ---------------------------------------------------------------------------------------------------------------------

CALL = re.compile(r"[A-Za-z]'{0,2}\s?\(\s?[A-Za-z](?:\s?,\s?[A-Za-z])?\s?\)")
CALL_OF_ANYTHING = re.compile(r"[^\W\d_]\([^(]+\)")
LOOSE = re.compile(r"\s|\\(?:left|right|overline|,)(?![A-Za-z])|[|{}]")
FUNCTION_CALL = re.compile(
    r"(?:[A-Za-z]|\\[A-Za-z]+)(?:_\w{1,6})?(?:'{1,3}|\^-1|\^\(\w\))?"
    r"(?:\((?:[-+\d.,/]|\\frac|\\pi)+\)|(?<=[EFGHPTVWfgh'])[(\[](?:[^()]|\([^()]*\))+[)\]])"
)
r"""f(2), f'(-1), a_n(3) with numbers; P(A \cup B), E[X], f(x+1) for letters that usually name functions. x(x+1) is a product."""
SEGMENTS = re.compile(
    r"(?=.*(?:[A-Z]'?[A-Z]|\\angle[A-Z]))"
    r"(?:\\(?:frac|cdot|times|angle|triangle|overrightarrow|vec|sin|cos|tan|cot)|[A-Z]|'|_\d|\^2|[-+/:*()])+"
)
r"""AB, |AB|, \frac{NO}{BO}, AB + BC, AB^2: two adjacent capitals are a length, an area or an angle."""
OPERATOR_CALL = re.compile(r"\\text(?:Var|Cov|rank|tr|deg|area|Area|Pr|dist)\([^()]*\)|\\?(?:gcd|lcm)\([^()]*\)")
DERIVATIVE = re.compile(r"\\fracd(?:\^\d)?[a-zA-Z]d[a-zA-Z](?:\^\d)?|[A-Za-z]'{1,3}")
SETS = re.compile(r"[A-Z](?:\\(?:cup|cap|setminus)[A-Z])+")
WHOLE = re.compile(
    r"\s*\\(?:angle|triangle|widehat|overrightarrow|max|min|sup|inf|lim|sum|prod|int|iint|oint|det|dim|odot)(?![A-Za-z])|m\s*\\angle"
)
MARKED = (r"\vec", r"\overline", r"\mathbb", r"\hat")
ANGLE_NAMES = frozenset({"alpha", "beta", "gamma", "delta", "theta", "phi", "psi", "omega"})


def find_name(part: Reading) -> str | None:
    """Return the name if the part is one: a symbol, f(x), words. None for an expression."""
    if isinstance(part, Words):
        return part.text
    if not isinstance(part, Value) or part.unit:
        return None
    if part.node is not None and part.node.op == "symbol":
        return part.node.name
    return "".join(part.text.split()) if CALL.fullmatch(part.text) else None


def find_quantity_name(part: Reading) -> str | None:
    r"""Return the name of a single quantity: x, f(2), |AB|, NO/BO, A:B, \sin A. None for x + y, xy, x^2, |z|.

    The reference answer "f(2) = 5" is satisfied by 5. "x + y = 7" and "x^2 + y^2 = 1" are equations; their right side alone is
    not an answer.
    """
    if (name := find_name(part)) is not None:
        return name
    if isinstance(part, Group) and part.kind in (":", "cup"):
        parts = [find_quantity_name(item) for item in part.items]
        return part.kind.join(map(str, parts)) if all(parts) else None
    if not isinstance(part, Value) or part.unit:
        return None
    squeezed = LOOSE.sub("", part.text)
    if any(pattern.fullmatch(squeezed) for pattern in (OPERATOR_CALL, SEGMENTS, DERIVATIVE, SETS)) or is_call(squeezed):
        return squeezed
    if part.node is None:
        is_named = WHOLE.match(part.text) is not None and not part.refused.startswith("there are words")
    else:
        names = list_symbols(part.node)
        is_named = bool(names) and (all(name.startswith(MARKED) for name in names) or has_only_angles(part.node))
    return squeezed if is_named else None


def is_call(squeezed: str) -> bool:
    """Return whether the text is f(2), f(f(1)) or P(A), but not P(P + 1), where the letter is also a number."""
    name = squeezed[:1]
    is_inside = name.isalpha() and re.search(rf"{name}(?!\()", squeezed[1:]) is not None
    return FUNCTION_CALL.fullmatch(squeezed) is not None and not is_inside


def has_only_angles(node: Node) -> bool:
    r"""Return whether every letter is an angle inside a trigonometric function: \sin A, \tan^2\theta, but not \rho\cos\theta."""
    if node.op in ANGLES:
        return all((len(name) == 1 and name.isupper()) or name.removeprefix("\\") in ANGLE_NAMES for name in list_symbols(node))
    return node.op != "symbol" and all(map(has_only_angles, node.args))


def find_equation_name(reading: Reading) -> str | None:
    """Return x of "x = 5" or "5 = x"."""
    return find_name(reading.parts[0]) if isinstance(reading, Relation) and reading.ops == ("=",) else None


def is_number(reading: Reading) -> TypeGuard[Value]:
    """Return whether the value is a number under any reading of its letters: e and i may be names, angles may be in degrees."""
    node = reading.node if isinstance(reading, Value) else None
    return node is not None and not any(
        part.op in ("symbol", *ANGLES) or (part.op == "constant" and part.name != "pi") for part in walk(node)
    )


def has_symbols(reading: Reading) -> bool:
    return not isinstance(reading, Value) or reading.node is None or bool(list_symbols(reading.node))


def is_quantity(reading: Reading) -> bool:
    """Return whether the left side is the quantity asked for: x, f(2), sin A, x + y, 2^10. But 2x = 4 and x^2 = 4 are equations
    for x.
    """
    if find_name(reading) is not None or not isinstance(reading, Value) or reading.node is None:  # \angle ABC has no node
        return True
    is_named = any(part.op in (*ANGLES, "absolute", "log", "ln") for part in walk(reading.node))
    is_called = CALL_OF_ANYTHING.fullmatch("".join(reading.text.split())) is not None
    return is_called or is_named or len(list_symbols(reading.node)) != 1


# ---------------------------------------------------------------------------------------------------------------------
# Values
# ---------------------------------------------------------------------------------------------------------------------


def find_value(relation: Relation, strict: bool) -> Reading | None:
    """Return 5 for "x = 5", "x = 2 + 3 = 5" and "5 = x"; None where the whole relation is the answer.

    With `strict`, for reference answers, the left side must name one quantity. A completion may also write x + y = 7.
    """
    first, before, last = relation.parts[0], relation.parts[-2], relation.parts[-1]
    if set(relation.ops) == {"in"}:
        return None if is_number(first) else last
    if set(relation.ops) != {"="}:
        return None
    names = [find_name(item) or "" for item in first.items] if isinstance(first, Group) and first.kind == "()" else []
    if names and all(names):  # (x, y) = (1, 2); in another order it is another pair
        return last if names == sorted(set(names)) else None
    if find_name(last) is not None and not has_symbols(before):
        return before
    if (
        len(relation.parts) > 2 or find_name(first) is not None or not (has_symbols(first) or has_symbols(last))
    ):  # 2^{10} = 1024
        return last
    return last if (find_quantity_name(first) is not None if strict else is_quantity(first)) else None


def list_leaves(reading: Reading) -> Iterator[Value]:
    """Yield the expressions that a reference answer is compared by."""
    if isinstance(reading, Value):
        yield reading
    elif isinstance(reading, Group):
        for item in reading.items:
            yield from list_leaves(item)
    elif isinstance(reading, Relation):
        value = find_value(reading, strict=True)
        for part in reading.parts if value is None else (value,):
            yield from list_leaves(part)
