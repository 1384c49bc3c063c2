r"""Runs in jailed workers only: are two answers the same where exact arithmetic does not tell?

    compare({"found": "\\frac{1}{\\sqrt{2}}", "gold": "\\frac{\\sqrt{2}}{2}", "tolerance": "0", "cpu_s": 1.0})  ->  {"verdict": "right"}

Expressions that cohort.rewards.math.tree can read are compared by value: to 150 digits, relative to their size, at several
points if they have variables. That is stricter than a computer algebra system, whose simplifications stop at 15 digits,
and it never searches, so it never hangs. What that reader does not know (sums, integrals, limits, ...) is read and judged
by Math-Verify; its yes counts only if both sides are plain expressions, nothing of the text was dropped on the way to
SymPy, and their values agree.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import math
import re
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations
from typing import Any

import mpmath

from cohort.rewards.math.compare import Quick, same
from cohort.rewards.math.kinds import Value
from cohort.rewards.math.shapes import read
from cohort.rewards.math.statements import leaves
from cohort.rewards.math.text import normalise
from cohort.rewards.math.tree import Node, Refused, check_size, exact, has, symbols

try:
    import math_verify
    import sympy
except ImportError:  # without the package, what only it can read stays unread
    math_verify = sympy = None

DIGITS = 200
SLACK = 50
"""Values are computed to DIGITS digits and more where terms of a sum differ much in size; equal ones agree in all but SLACK
of them. A value whose size falls with the precision it is computed in is a zero."""
POINTS = 8
FEWEST_POINTS = 3
INTEGER_NAMES = frozenset("nkmj")


class OutOfTime(BaseException):
    """The share of CPU time for this question is used up. No Exception, for Math-Verify and SymPy swallow those."""


def compare(message: Mapping[str, Any]) -> dict[str, str]:
    """The entry of the workers: {"verdict": "right", "wrong", "unparsed", "gold" or "timeout", "detail": why}.

    A message without "found" asks whether its gold answer can be evaluated at all: "right" or "gold".
    """
    if "found" not in message:
        problem = gold_problem(str(message["gold"]), float(message.get("cpu_s", 0.0)))
        return {"verdict": "gold" if problem else "right", "detail": problem}
    judge = Symbolic(Fraction(str(message.get("tolerance", "0"))))
    try:
        with cpu_share(float(message.get("cpu_s", 0.0))):
            found, gold = str(message["found"]), str(message["gold"])
            verdict = normalise(found) == normalise(gold) or same(read(found), read(gold), judge)
    except OutOfTime:
        return {"verdict": "timeout", "detail": "the comparison ran into its share of CPU time"}
    except (RecursionError, Refused):
        return {"verdict": "unparsed", "detail": "it is nested too deep"}
    if verdict is True:
        return {"verdict": "right", "detail": ""}
    if judge.gold_unread:
        return {"verdict": "gold", "detail": judge.gold_unread}
    return {"verdict": "unparsed" if judge.unread else "wrong", "detail": judge.unread}


def gold_problem(text: str, cpu_s: float) -> str:
    """Why a gold answer has no value to compare with; "" if it has."""
    try:
        with cpu_share(cpu_s):
            for leaf in leaves(read(text)):
                if leaf.node is not None:
                    if not has_value(leaf.node):
                        return "it has no value"
                    continue
                parsed = parsed_by_math_verify(leaf.text)
                if parsed is None:
                    return "it cannot be read, by Math-Verify neither"
                if parsed.doit().has(sympy.nan, sympy.zoo):
                    return "it has no value"
    except OutOfTime:
        return "evaluating it takes too long"
    except Exception as problem:
        return f"evaluating it fails with {type(problem).__name__}"
    return ""


def has_value(node: Node) -> bool:
    if has_infinity(node):
        return signed_infinity(node) != 0
    names = sorted(symbols(node))
    points = [*points_for(names), *whole_points(names)] if names else [{}]
    digits = digits_for(node, node)
    return any(both_at(node, node, point, None, digits) is not None for point in points)


@contextlib.contextmanager
def cpu_share(seconds: float) -> Iterator[None]:
    """Raise OutOfTime after so much CPU time. It saves a new worker; what blocks the interpreter is killed from outside."""
    if seconds <= 0 or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 0.05)  # again and again, lest a swallowed one were the last
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


class Symbolic(Quick):
    """The judge of the workers: leaves nothing open."""

    def values(self, found: Value, gold: Value, tolerance: Fraction) -> bool:
        quick = super().values(found, gold, tolerance)
        if quick is not None:
            return quick
        if found.node is not None and gold.node is not None:
            verdict = same_values(found.node, gold.node, tolerance)
            if verdict is None and not has_value(found.node):
                self.unread = "it has no value"
            elif verdict is None and not has_value(gold.node):
                self.gold_unread = "it has no value"
            return bool(verdict)
        return self.asked_math_verify(found, gold)

    def relations(self, found: tuple[Node, Node], gold: tuple[Node, Node], directed: bool) -> bool:
        return found == gold or proportional(difference(found), difference(gold), directed)

    def asked_math_verify(self, found: Value, gold: Value) -> bool:
        parsed = [as_sympy(side) for side in (found, gold)]
        if parsed[0] is None:
            self.unread = "it cannot be read, by Math-Verify neither"
        elif parsed[1] is None:
            self.gold_unread = "it cannot be read, by Math-Verify neither"
        else:
            return same_expressions(parsed[0], parsed[1])
        return False


# ---------------------------------------------------------------------------------------------------------------------
# By value
# ---------------------------------------------------------------------------------------------------------------------


def same_values(left: Node, right: Node, tolerance: Fraction) -> bool | None:
    """None: nowhere are both defined."""
    if has_infinity(left) or has_infinity(right):
        return signed_infinity(left) == signed_infinity(right) != 0
    # \log without a base is natural to some and decimal to others; both sides mean the same.
    bases: list[int | None] = [None, 10] if has(left, "log", 1) or has(right, "log", 1) else [None]
    verdicts = [same_at_points(left, right, tolerance, base) for base in bases]
    return True if True in verdicts else (None if None in verdicts else False)


def has_infinity(node: Node) -> bool:
    return (node.op == "constant" and node.name == "infty") or any(map(has_infinity, node.args))


def signed_infinity(node: Node) -> int:
    if node.op == "negate":
        return -signed_infinity(node.args[0])
    return int(node.op == "constant" and node.name == "infty")


def same_at_points(left: Node, right: Node, tolerance: Fraction, log_base: int | None) -> bool | None:
    names, digits = sorted(symbols(left) | symbols(right)), digits_for(left, right)
    if not names:
        pair = both_at(left, right, {}, log_base, digits)
        if pair is None:
            return None
        return (bool(tolerance) and within(pair, tolerance)) or agree(left, right, {}, log_base, digits)
    imaginary = any(has_constant(side, "i") for side in (left, right))
    agreed, others = 0, []
    for point in points_for(names):
        pair = both_at(left, right, point, log_base, digits)
        if pair is None:
            continue
        if not (imaginary or (is_real(pair[0]) and is_real(pair[1]))):
            others.append(point)
        elif not agree(left, right, point, log_base, digits):
            return False
        else:
            agreed += 1
    if agreed >= FEWEST_POINTS:
        return True
    if set(names) <= INTEGER_NAMES:  # (-1)^n is a number at whole n only
        others = [point for point in whole_points(names) if both_at(left, right, point, log_base, digits) is not None]
    if agreed + len(others) < FEWEST_POINTS:
        return None
    return all(agree(left, right, point, log_base, digits) for point in others)


def within(pair: tuple[Any, Any], tolerance: Fraction) -> bool:
    with mpmath.workdps(DIGITS):
        return bool(abs(pair[0] - pair[1]) <= mpmath.mpf(tolerance.numerator) / tolerance.denominator)


def has_constant(node: Node, name: str) -> bool:
    return (node.op == "constant" and node.name == name) or any(has_constant(arg, name) for arg in node.args)


def points_for(names: Sequence[str]) -> Iterator[dict[str, Fraction]]:
    """Fixed points with odd fractions, half of them negative: the same question has the same answer on every machine."""
    for place in range(POINTS):
        point = {}
        for name in names:
            digest = hashlib.sha256(f"{name}:{place}".encode()).digest()
            size = Fraction(int.from_bytes(digest[:4], "big") % 2900 + 131, 1009)
            point[name] = -size if digest[4] % 2 and place % 2 else size
        yield point
    yield {name: -Fraction(7 + place, 11) for place, name in enumerate(names)}


def whole_points(names: Sequence[str]) -> Iterator[dict[str, Fraction]]:
    for place in range(1, 8):
        yield {name: Fraction(place + 2 * offset) for offset, name in enumerate(names)}


def digits_for(left: Node, right: Node) -> int:
    return DIGITS + math.ceil(0.7 * max(check_size(left), check_size(right)) / DIGITS) * DIGITS


def both_at(
    left: Node, right: Node, point: Mapping[str, Fraction], log_base: int | None, digits: int
) -> tuple[Any, Any] | None:
    """Both values, or None where one is not defined."""
    values = [value_or_none(side, tuple(point.items()), log_base, digits) for side in (left, right)]
    return None if values[0] is None or values[1] is None else (values[0], values[1])


@functools.lru_cache(maxsize=4096)
def value_or_none(node: Node, point: tuple[tuple[str, Fraction], ...], log_base: int | None, digits: int) -> Any:
    """The value at a point, kept: the members of a set are each compared with all of the other."""
    with mpmath.workdps(digits):
        try:
            value = value_at(node, dict(point), log_base)
        except (ZeroDivisionError, ValueError, OverflowError, TypeError, NotImplementedError, mpmath.libmp.NoConvergence):
            return None
        return value if mpmath.isfinite(value) else None


def is_real(value: Any) -> bool:
    return not isinstance(value, mpmath.mpc) or abs(value.imag) <= abs(value) * mpmath.mpf(10) ** (SLACK - DIGITS)


def agree(left: Node, right: Node, point: Mapping[str, Fraction], log_base: int | None, digits: int) -> bool:
    """Equal relative to their size; or both zero, which shows in their shrinking with the precision."""
    pair = both_at(left, right, point, log_base, digits)
    if pair is None:
        return False
    with mpmath.workdps(digits):
        largest = max(map(abs, pair))
        if abs(pair[0] - pair[1]) <= largest * mpmath.mpf(10) ** (SLACK - digits):
            return True
    finer = both_at(left, right, point, log_base, 4 * digits)
    if finer is None:
        return False
    with mpmath.workdps(4 * digits):
        return bool(max(map(abs, finer)) <= largest * mpmath.mpf(10) ** (-2 * digits))


FUNCTION = {
    "sin": mpmath.sin, "cos": mpmath.cos, "tan": mpmath.tan, "cot": mpmath.cot, "sec": mpmath.sec, "csc": mpmath.csc,
    "arcsin": mpmath.asin, "arccos": mpmath.acos, "arctan": mpmath.atan, "sinh": mpmath.sinh, "cosh": mpmath.cosh,
    "tanh": mpmath.tanh, "ln": mpmath.log, "exp": mpmath.exp, "absolute": abs, "floor": mpmath.floor, "ceil": mpmath.ceil,
    "factorial": mpmath.factorial, "binomial": mpmath.binomial,
}  # fmt: skip
CONSTANTS = {"pi": lambda: +mpmath.pi, "e": lambda: +mpmath.e, "i": lambda: mpmath.mpc(0, 1)}


def value_at(node: Node, point: Mapping[str, Fraction], log_base: int | None) -> Any:
    if node.op in ("number", "symbol"):
        number = node.number if node.op == "number" else point[node.name]
        assert number is not None
        return mpmath.mpf(number.numerator) / number.denominator
    if node.op == "constant":
        return CONSTANTS[node.name]()
    if node.op == "power":
        return power_at(node, point, log_base)
    values = [value_at(arg, point, log_base) for arg in node.args]
    match node.op, values:
        case "add", _:
            return mpmath.fsum(values)
        case "multiply", _:
            return mpmath.fprod(values)
        case "divide", [top, bottom]:
            return top / bottom
        case "negate", [inner]:
            return -inner
        case "root", [inner, degree]:
            return real_root(inner, exact(node.args[1])) or inner ** (1 / degree)
        case "log", [inner, base]:
            return mpmath.log(inner) / mpmath.log(base)
        case "log", [inner]:
            return mpmath.log(inner) if log_base is None else mpmath.log(inner, log_base)
    return FUNCTION[node.op](*values)


def power_at(node: Node, point: Mapping[str, Fraction], log_base: int | None) -> Any:
    base, exponent = value_at(node.args[0], point, log_base), exact(node.args[1])
    if exponent is None:
        return base ** value_at(node.args[1], point, log_base)
    if base == 0 and exponent <= 0:
        raise ZeroDivisionError
    if exponent.denominator == 1:
        return base ** int(exponent)
    root = real_root(base, Fraction(exponent.denominator))
    return base ** (mpmath.mpf(exponent.numerator) / exponent.denominator) if root is None else root ** int(exponent.numerator)


def real_root(inner: Any, degree: Fraction | None) -> Any:
    """The real cube root of -8 is -2. None: the principal value is meant."""
    if degree is None or degree.denominator != 1 or degree % 2 == 0 or degree < 0 or not is_real(inner):
        return None
    real = mpmath.re(inner)
    return -(abs(real) ** (mpmath.mpf(1) / int(degree))) if real < 0 else None


# ---------------------------------------------------------------------------------------------------------------------
# Relations
# ---------------------------------------------------------------------------------------------------------------------


def difference(sides: tuple[Node, Node]) -> Node:
    return Node("add", (sides[0], Node("negate", (sides[1],))))


def proportional(left: Node, right: Node, directed: bool) -> bool:
    """Whether one is the other times a constant (a positive one where the relation has a direction), zero nowhere common."""
    names = sorted(symbols(left) | symbols(right))
    digits = digits_for(left, right)
    pairs = [both_at(left, right, point, None, digits) for point in points_for(names)]
    if not names:
        return False
    with mpmath.workdps(DIGITS):
        quotients = [pair[0] / pair[1] for pair in pairs if pair is not None and pair[1] != 0]
    if len(quotients) < FEWEST_POINTS or not all(quotient != 0 and is_real(quotient) for quotient in quotients):
        return False
    if directed and not all(mpmath.re(quotient) > 0 for quotient in quotients):
        return False
    with mpmath.workdps(DIGITS):
        small = mpmath.mpf(10) ** (SLACK - DIGITS)
        return all(abs(one - other) <= abs(one) * small for one, other in combinations(quotients, 2))


# ---------------------------------------------------------------------------------------------------------------------
# Math-Verify
# ---------------------------------------------------------------------------------------------------------------------

SYMPY = {
    "add": "Add", "multiply": "Mul", "power": "Pow", "absolute": "Abs", "floor": "floor", "ceil": "ceiling", "factorial": "factorial",
    "binomial": "binomial", "log": "log", "ln": "log", "arcsin": "asin", "arccos": "acos", "arctan": "atan",
}  # fmt: skip
"""Names of operations that differ there from ours."""


def as_sympy(value: Value) -> Any:
    """An answer as a SymPy expression, or None. What our own reader understood is built from its tree, never read again."""
    if value.node is None or sympy is None:
        return parsed_by_math_verify(value.text)
    with contextlib.suppress(Exception):
        return built(value.node)
    return None


def built(node: Node) -> Any:
    number = exact(node)
    if number is not None:
        return sympy.Rational(number.numerator, number.denominator)
    if node.op == "symbol":
        name, _, index = node.name.removeprefix("\\").partition("_")
        return sympy.Symbol(f"{name}_{{{index}}}" if len(index) > 1 else node.name.removeprefix("\\"))
    if node.op == "constant":
        return {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "infty": sympy.oo}[node.name]
    args = [built(arg) for arg in node.args]
    match node.op, args:
        case "divide", [top, bottom]:
            return top / bottom
        case "negate", [inner]:
            return -inner
        case "root", [inner, degree]:
            return inner ** (1 / degree)
    return getattr(sympy, SYMPY.get(node.op, node.op))(*args)


NAMES = re.compile(r"\\([A-Za-z]+)|([A-Za-z])|(\d+)")


def parsed_by_math_verify(text: str) -> Any:
    """A SymPy expression that holds every letter and number of the text, or None."""
    if math_verify is None:
        return None
    with contextlib.suppress(Exception):
        return read_by_math_verify(text)
    return None


def read_by_math_verify(text: str) -> Any:
    config = [math_verify.LatexExtractionConfig(boxed_match_priority=-1)]
    found = math_verify.parse(
        f"${text}$", extraction_config=config, fallback_mode="no_fallback", extraction_mode="first_match", parsing_timeout=None
    )
    if len(found) != 1 or not isinstance(found[0], sympy.Expr):
        return None
    return found[0] if nothing_dropped(text, found[0]) else None


def nothing_dropped(text: str, expression: Any) -> bool:
    """Math-Verify takes what it understands and leaves the rest, such as the root of "4 sqrt(2)"."""
    held = sympy.srepr(expression)
    letters = {letter for _, letter, _ in NAMES.findall(text) if letter and letter not in "deiEI"}
    numbers = {digits.lstrip("0") or "0" for _, _, digits in NAMES.findall(text) if digits}
    return all(letter in held for letter in letters) and all(digits in held for digits in numbers)


def same_expressions(found: Any, gold: Any) -> bool:
    """Math-Verify's yes, and the same value at points (or the same tree where nothing has a value)."""
    if {str(symbol) for symbol in found.free_symbols} != {str(symbol) for symbol in gold.free_symbols}:
        return False
    # One symbol for one name: Math-Verify makes its own kinds of them.
    ours = {str(symbol): symbol for symbol in found.free_symbols}
    gold = gold.xreplace({symbol: ours[str(symbol)] for symbol in gold.free_symbols})
    found, gold = done(found), done(gold)  # a sum as its value; comparing two sums term by term may take for ever
    if found == gold:
        return True
    if not math_verify.verify(gold, found, float_rounding=12, numeric_precision=40, timeout_seconds=None):
        return False
    names = sorted(map(str, gold.free_symbols))
    agreed = 0
    for point in points_for(names) if names else [{}]:
        values = [numeric(side, point) for side in (found, gold)]
        if values[0] is None or values[1] is None:
            continue
        largest = max(abs(values[0]), abs(values[1]))
        if abs(values[0] - values[1]) > largest * sympy.Float("1e-30", 40):
            return False
        agreed += 1
    return agreed >= (FEWEST_POINTS if names else 1)


def done(expression: Any) -> Any:
    try:
        return expression.doit()
    except Exception:
        return expression


def numeric(expression: Any, point: Mapping[str, Fraction]) -> Any:
    try:
        places = {symbol: sympy.Rational(str(point[str(symbol)])) for symbol in expression.free_symbols}
        value = expression.subs(places).evalf(40)
        return value if value.is_number and value.is_finite and not value.has(sympy.Sum, sympy.Integral) else None
    except Exception:
        return None


logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own time limits are off; ours are outside
if math_verify is not None:  # its tables are built by the first use; no question pays for that
    same_expressions(parsed_by_math_verify(r"\sum_{n=1}^{3} n"), parsed_by_math_verify(r"\sum_{k=1}^{3} k"))
