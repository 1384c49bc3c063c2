"""What a relation says: the value that "x = 5" gives, and which of its parts are names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import TypeGuard

from cohort.rewards.math.kinds import Group, Relation, Shape, Value, Words
from cohort.rewards.math.tree import ANGLES, Node, has, symbols


def name_of_part(part: Shape) -> str | None:
    """The name that a part of a relation is: a symbol, f(x), words. None where it is an expression."""
    if isinstance(part, Words):
        return part.text
    if not isinstance(part, Value) or part.unit:
        return None
    if part.node is not None and part.node.op == "symbol":
        return part.node.name
    if CALL.fullmatch(part.text):
        return "".join(part.text.split())
    return None


CALL = re.compile(r"[A-Za-z]'{0,2}\s?\(\s?[A-Za-z](?:\s?,\s?[A-Za-z])?\s?\)")


def quantity_name(part: Shape) -> str | None:
    r"""The name of a quantity that has one value: x, f(2), |AB|, NO/BO, A:B, \sin A. None for x + y, xy, x^2, |z|.

    A gold "f(2) = 5" says 5; "x + y = 7" and "x^2 + y^2 = 1" are equations, which their right side alone is not.
    """
    if (name := name_of_part(part)) is not None:
        return name
    if isinstance(part, Group) and part.kind in (":", "cup"):
        parts = [quantity_name(item) for item in part.items]
        return part.kind.join(map(str, parts)) if all(parts) else None
    if not isinstance(part, Value) or part.unit:
        return None
    squeezed = LOOSE.sub("", part.text)
    if is_function_call(squeezed) or any(
        pattern.fullmatch(squeezed) for pattern in (OPERATOR_CALL, SEGMENTS, DERIVATIVE, SETS)
    ):
        return squeezed
    if part.node is None:
        return squeezed if WHOLE.match(part.text) and not part.refused.startswith("there are words") else None
    names = symbols(part.node)
    if not names:
        return None
    return squeezed if all(name.startswith(MARKED) for name in names) or only_in_angles(part.node) else None


def is_function_call(squeezed: str) -> bool:
    """f(2), f(f(1)), P(A); not P(P + 1), where the letter stands inside as a number."""
    name = squeezed[:1]
    return FUNCTION_CALL.fullmatch(squeezed) is not None and not any(
        squeezed[place] == name and squeezed[place + 1 : place + 2] != "("
        for place in range(1, len(squeezed))
        if name.isalpha()
    )


LOOSE = re.compile(r"\s|\\(?:left|right|overline|,)(?![A-Za-z])|[|{}]")
FUNCTION_CALL = re.compile(
    r"(?:[A-Za-z]|\\[A-Za-z]+)(?:_\w{1,6})?(?:'{1,3}|\^-1|\^\(\w\))?"
    r"(?:\((?:[-+\d.,/]|\\frac|\\pi)+\)|(?<=[EFGHPTVWfgh'])[(\[](?:[^()]|\([^()]*\))+[)\]])"
)
r"""f(2), f'(-1), a_n(3) of numbers; P(A \cup B), E[X], f(x+1) where the letter is one for functions. x(x+1) is a product."""
SEGMENTS = re.compile(
    r"(?=.*(?:[A-Z]'?[A-Z]|\\angle[A-Z]))"
    r"(?:\\(?:frac|cdot|times|angle|triangle|overrightarrow|vec|sin|cos|tan|cot)|[A-Z]|'|_\d|\^2|[-+/:*()])+"
)
r"""AB, |AB|, \frac{NO}{BO}, AB + BC, AB^2: two capitals side by side are a length, an area or an angle."""
OPERATOR_CALL = re.compile(r"\\text(?:Var|Cov|rank|tr|deg|area|Area|Pr|dist)\([^()]*\)|\\?(?:gcd|lcm)\([^()]*\)")
DERIVATIVE = re.compile(r"\\fracd(?:\^\d)?[a-zA-Z]d[a-zA-Z](?:\^\d)?|[A-Za-z]'{1,3}")
SETS = re.compile(r"[A-Z](?:\\(?:cup|cap|setminus)[A-Z])+")
WHOLE = re.compile(
    r"\s*\\(?:angle|triangle|widehat|overrightarrow|max|min|sup|inf|lim|sum|prod|int|iint|oint|det|dim|odot)(?![A-Za-z])|m\s*\\angle"
)
MARKED = (r"\vec", r"\overline", r"\mathbb", r"\hat")
ANGLE_NAMES = frozenset({"alpha", "beta", "gamma", "delta", "theta", "phi", "psi", "omega"})


def only_in_angles(node: Node) -> bool:
    r"""Whether every letter stands inside a sine or the like and names an angle: \sin A, \tan^2\theta; not \rho\cos\theta."""
    if node.op in ANGLES:
        return all((len(name) == 1 and name.isupper()) or name.removeprefix("\\") in ANGLE_NAMES for name in symbols(node))
    if node.op == "symbol":
        return False
    return all(map(only_in_angles, node.args))


def name_of(shape: Shape) -> str | None:
    """x of "x = 5" (and of "5 = x")."""
    if not isinstance(shape, Relation) or set(shape.ops) != {"="} or len(shape.ops) > 1:
        return None
    return name_of_part(shape.parts[0])


def is_number(shape: Shape) -> TypeGuard[Value]:
    """A number whatever the letters mean: e and i may be names, and angles degrees."""
    if not isinstance(shape, Value) or shape.node is None or symbols(shape.node):
        return False
    return not any(has(shape.node, op) for op in ANGLES) and not has_named(shape.node)


def has_named(node: Node) -> bool:
    return (node.op == "constant" and node.name != "pi") or any(map(has_named, node.args))


def half_a_place(shape: Value) -> Fraction:
    """Half of the last place of a decimal; nothing for a whole number."""
    decimals = DECIMALS.fullmatch(shape.text)
    return Fraction(1, 2 * 10 ** min(len(decimals[1]), 50)) if decimals else Fraction(0)


DECIMALS = re.compile(r"-?\s?[\d,\s]*\.(\d+)")


def rounding_of(shape: Value) -> Fraction:
    """Half of the last place that is written."""
    return Fraction(1, 2 * 10 ** min(len(shape.text.partition(".")[2]), 50))


def coarse_rounding_of(shape: Value) -> Fraction:
    """The same, where 1200 may be rounded to hundreds; with a single digit before its zeros, as 10 or 2000, a number is exact."""
    digits = shape.text.lstrip("-")
    zeros = len(digits) - len(digits.rstrip("0")) if digits.isdecimal() else 0
    return Fraction(10 ** min(zeros, 50), 2) if zeros and len(digits) - zeros > 1 else rounding_of(shape)


def shortened(relation: Relation, place: int) -> Shape:
    return relation.parts[0] if place == 0 else Relation(relation.parts[: place + 1], relation.ops[:place])


def value_of(relation: Relation, strict: bool) -> Shape | None:
    """5 of "x = 5", of "x = 2 + 3 = 5" and of "5 = x"; None where the relation is the answer.

    strict, for golds: what stands on the left must be the name of one quantity. A completion may also write x + y = 7.
    """
    if set(relation.ops) == {"in"}:
        return None if is_number(relation.parts[0]) else relation.parts[-1]
    if set(relation.ops) != {"="}:
        return None
    first, last = relation.parts[0], relation.parts[-1]
    if names := names_of_tuple(first):  # (x, y) = (1, 2); in another order it is another pair
        return last if names == sorted(set(names)) else None
    if len(relation.parts) > 2:
        before = relation.parts[-2]
        return before if name_of_part(last) is not None and not has_symbols(before) else last
    if name_of_part(first) is not None:
        return last
    if name_of_part(last) is not None and not has_symbols(first):
        return first
    if not has_symbols(first) and not has_symbols(last):  # 2^{10} = 1024
        return last
    return last if (quantity_name(first) is not None if strict else is_quantity(first)) else None


def names_of_tuple(shape: Shape) -> list[str]:
    if not isinstance(shape, Group) or shape.kind != "()":
        return []
    names = [name_of_part(item) for item in shape.items]
    known = [name for name in names if name is not None]
    return known if len(known) == len(names) else []


def has_symbols(shape: Shape) -> bool:
    return not isinstance(shape, Value) or shape.node is None or bool(symbols(shape.node))


def is_quantity(shape: Shape) -> bool:
    """Whether the left side names what was asked for: x, f(2), sin A, x + y, 2^10. But 2x = 4 and x^2 = 4 are equations for x."""
    if name_of_part(shape) is not None or not isinstance(shape, Value):
        return True
    if shape.node is None:  # \angle ABC
        return True
    if is_call(shape.text):
        return True
    named = [op for op in (*ANGLES, "absolute", "log", "ln") if has(shape.node, op)]
    return bool(named) or len(symbols(shape.node)) != 1


def is_call(text: str) -> bool:
    squeezed = "".join(text.split())
    return (
        len(squeezed) > 3 and squeezed[0].isalpha() and squeezed[1] == "(" and squeezed[-1] == ")" and squeezed.count("(") == 1
    )


def sides(relation: Relation) -> tuple[Node, Node] | None:
    first, last = relation.parts[0], relation.parts[-1]
    if isinstance(first, Value) and isinstance(last, Value) and first.node is not None and last.node is not None:
        return None if first.doubtful or last.doubtful else (first.node, last.node)
    return None


def leaves(shape: Shape) -> Iterator[Value]:
    """The expressions that a gold answer is compared by."""
    if isinstance(shape, Value):
        yield shape
    elif isinstance(shape, Group):
        for item in shape.items:
            yield from leaves(item)
    elif isinstance(shape, Relation):
        value = value_of(shape, strict=True)
        for part in shape.parts if value is None else (value,):
            yield from leaves(part)


def mixed_units(group: Group) -> list[str]:
    """The units of a scale like 1 cm : 5 km, none where all are the same."""
    units = [item.unit for item in group.items if isinstance(item, Value)]
    return units if len(set(units)) > 1 else []
