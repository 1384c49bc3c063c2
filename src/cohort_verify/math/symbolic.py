r"""Compares two answers where exact arithmetic cannot decide. Runs only in jailed workers.

    compare({"found": "\\frac{1}{\\sqrt{2}}", "gold": "\\frac{\\sqrt{2}}{2}", "tolerance": "0", "cpu_s": 1.0})  ->  {"verdict": "right"}

Expressions that cohort_verify.math.expressions can read are compared by value: to 150 digits relative to their size, at several
points if they have variables. That is stricter than a computer algebra system, whose simplifications stop at 15 digits, and it
always ends. Other expressions (sums, integrals, limits, ...) are read and compared by Math-Verify. Its yes counts only if both
sides are plain expressions, no part of the text was dropped on the way to SymPy, and the values agree.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import chain, combinations, starmap
from typing import Any

import math_verify
import mpmath
import sympy

from cohort_verify.math.compare import ExactJudge, Sides, find_verdict
from cohort_verify.math.kinds import Value, list_leaves
from cohort_verify.math.readers import read_answer
from cohort_verify.math.text import normalise
from cohort_verify.math.tree import ARITHMETIC, Node, OutOfBounds, check_size, find_exact, has_constant, list_symbols, walk

NO_VALUE = "it has no value"
UNREAD = "neither Cohort nor Math-Verify can read it"


class OutOfTime(BaseException):
    """The CPU time for this message is used up. Not an Exception, because Math-Verify and SymPy swallow those."""


def compare(message: Mapping[str, Any]) -> dict[str, str]:
    """The workers' entry: {"verdict": "right", "wrong", "unevaluated", "unparsed", "gold" or "timeout", "detail": reason}.

    A message without "found" asks whether its reference answer can be evaluated: "right" or "gold".
    """
    if "found" not in message:
        problem = find_reference_problem(str(message["gold"]), float(message.get("cpu_s", 0.0)))
        return {"verdict": "gold" if problem else "right", "detail": problem}
    judge = SymbolicJudge(Fraction(str(message.get("tolerance", "0"))))
    try:
        with share_cpu(float(message.get("cpu_s", 0.0))):
            found, gold = str(message["found"]), str(message["gold"])
            is_same_text = normalise(found) == normalise(gold)
            word = "right" if is_same_text else find_verdict(read_answer(found), read_answer(gold), judge)
    except OutOfTime:
        return {"verdict": "timeout", "detail": "the comparison ran into its share of CPU time"}
    except (RecursionError, OutOfBounds):
        return {"verdict": "unparsed", "detail": "it is nested too deep"}
    if judge.reference_unread and word != "right":
        return {"verdict": "gold", "detail": judge.reference_unread}
    return {"verdict": word or "wrong", "detail": judge.unread if word == "unparsed" else ""}


def find_reference_problem(text: str, cpu_s: float) -> str:
    """Return why a reference answer has no value to compare with, or ""."""
    try:
        with share_cpu(cpu_s):
            for leaf in list_leaves(read_answer(text)):
                if leaf.node is not None:
                    is_defined = has_value(leaf.node)
                elif (parsed := parse_by_math_verify(leaf.text)) is None:
                    return UNREAD
                else:
                    is_defined = not parsed.doit().has(sympy.nan, sympy.zoo)
                if not is_defined:
                    return NO_VALUE
    except OutOfTime:
        return "evaluating it takes too long"
    except Exception as problem:
        return f"evaluating it fails with {type(problem).__name__}"
    return ""


@contextlib.contextmanager
def share_cpu(seconds: float) -> Iterator[None]:
    """Raise OutOfTime after that much CPU time. This saves starting a new worker; a blocked interpreter is killed from outside."""
    if seconds <= 0 or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 0.05)  # repeated in case one is swallowed
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


class SymbolicJudge(ExactJudge):
    """The workers' judge: decides every comparison."""

    def compare_values(self, found: Value, gold: Value, tolerance: Fraction) -> bool:
        exactly = super().compare_values(found, gold, tolerance)
        if exactly is not None:
            return exactly
        if found.node is None or gold.node is None:
            return self.compare_by_sympy(found, gold)
        decision = are_equal(found.node, gold.node, tolerance)
        if decision is None and not has_value(found.node):
            self.unread = NO_VALUE
        elif decision is None and not has_value(gold.node):
            self.reference_unread = NO_VALUE
        return bool(decision)

    def compare_relations(self, found: Sides, gold: Sides, directed: bool) -> bool:
        left, right = (Node("add", (side[0], Node("negate", (side[1],)))) for side in (found, gold))
        return found == gold or NodePair(left, right).is_proportional(directed)

    def compare_by_sympy(self, found: Value, gold: Value) -> bool:
        left, right = make_sympy(found), make_sympy(gold)
        if left is None:
            self.unread = UNREAD
        elif right is None:
            self.reference_unread = UNREAD
        else:
            return are_same_expressions(left, right)
        return False


# ---------------------------------------------------------------------------------------------------------------------
# Math-Verify
# ---------------------------------------------------------------------------------------------------------------------

SYMPY = {
    "add": "Add", "multiply": "Mul", "power": "Pow", "ceil": "ceiling", "ln": "log", "arcsin": "asin", "arccos": "acos", "arctan": "atan",
}  # fmt: skip
"""SymPy's names of operations, where they differ."""
SYMPY_CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "infty": sympy.oo}
NAMES = re.compile(r"\\([A-Za-z]+)|([A-Za-z])|(\d+)")


def make_sympy(value: Value) -> Any:
    """Return an answer as a SymPy expression, or None. Answers that were read here are built from their tree."""
    if value.node is None:
        return parse_by_math_verify(value.text)
    with contextlib.suppress(Exception):
        return build_sympy(value.node)
    return None


def build_sympy(node: Node) -> Any:
    if (number := find_exact(node)) is not None:
        return sympy.Rational(number.numerator, number.denominator)
    if node.op == "symbol":
        name, _, index = node.name.removeprefix("\\").partition("_")
        return sympy.Symbol(f"{name}_{{{index}}}" if len(index) > 1 else node.name.removeprefix("\\"))
    if node.op == "constant":
        return SYMPY_CONSTANTS[node.name]
    args = [build_sympy(arg) for arg in node.args]
    if node.op == "root":
        return args[0] ** (1 / args[1])
    return (ARITHMETIC.get(node.op) or getattr(sympy, SYMPY.get(node.op, node.op)))(*args)


def parse_by_math_verify(text: str) -> Any:
    """Return a SymPy expression that contains every letter and number of the text, or None."""
    config = [math_verify.LatexExtractionConfig(boxed_match_priority=-1)]
    with contextlib.suppress(Exception):
        found = math_verify.parse(
            f"${text}$",
            extraction_config=config,
            fallback_mode="no_fallback",
            extraction_mode="first_match",
            parsing_timeout=None,
        )
        if len(found) == 1 and isinstance(found[0], sympy.Expr) and holds_all(found[0], text):
            return found[0]
    return None


def holds_all(expression: Any, text: str) -> bool:
    """Return whether nothing was dropped. Math-Verify reads what it understands and drops the rest, such as the root of "4
    sqrt(2)".
    """
    held = sympy.srepr(expression)
    letters = {letter for _, letter, _ in NAMES.findall(text) if letter and letter not in "deiEI"}
    numbers = {digits.lstrip("0") or "0" for _, _, digits in NAMES.findall(text) if digits}
    return all(piece in held for piece in letters | numbers)


def are_same_expressions(found: Any, gold: Any) -> bool:
    """Return whether Math-Verify agrees and the values are the same at points (or the trees are, if nothing has a value)."""
    ours = {str(symbol): symbol for symbol in found.free_symbols}
    if set(ours) != set(map(str, gold.free_symbols)):
        return False
    # Use one symbol per name; Math-Verify makes several kinds.
    gold = gold.xreplace({symbol: ours[str(symbol)] for symbol in gold.free_symbols})
    found, gold = run_sums(found), run_sums(gold)
    if found == gold:
        return True
    if not math_verify.verify(gold, found, float_rounding=12, numeric_precision=40, timeout_seconds=None):
        return False
    names = sorted(map(str, gold.free_symbols))
    agreed = 0
    for point in list_points(names) if names else [{}]:
        left, right = evaluate_sympy(found, point), evaluate_sympy(gold, point)
        if left is None or right is None:
            continue
        if abs(left - right) > max(abs(left), abs(right)) * sympy.Float("1e-30", 40):
            return False
        agreed += 1
    return agreed >= (FEWEST_POINTS if names else 1)


def run_sums(expression: Any) -> Any:
    """Evaluate sums: comparing two of them term by term may never end."""
    with contextlib.suppress(Exception):
        return expression.doit()
    return expression


def evaluate_sympy(expression: Any, point: Point) -> Any:
    with contextlib.suppress(Exception):
        places = {symbol: sympy.Rational(str(point[str(symbol)])) for symbol in expression.free_symbols}
        value = expression.subs(places).evalf(40)
        return value if value.is_number and value.is_finite and not value.has(sympy.Sum, sympy.Integral) else None
    return None


logging.getLogger("math_verify").setLevel(
    logging.ERROR
)  # silences the warning that its own time limits are off: the jail has limits
# The first use builds Math-Verify's tables. Do it here, so that no message is charged for it.
are_same_expressions(parse_by_math_verify(r"\sum_{n=1}^{3} n"), parse_by_math_verify(r"\sum_{k=1}^{3} k"))

# ---------------------------------------------------------------------------------------------------------------------
# Values at points
# ---------------------------------------------------------------------------------------------------------------------

DIGITS = 200
SLACK = 50
"""Values are computed to DIGITS digits, or more if terms of a sum differ much in size. Equal values agree in all but SLACK
digits. A value that shrinks as the precision grows is zero."""
POINTS = 8
FEWEST_POINTS = 3
INTEGER_NAMES = frozenset("nkmj")

Point = Mapping[str, Fraction]


def are_equal(left: Node, right: Node, tolerance: Fraction) -> bool | None:
    """Return whether two expressions have the same values; None if both are undefined everywhere."""
    if has_constant(left, "infty") or has_constant(right, "infty"):
        return find_infinity(left) == find_infinity(right) != 0
    # \log without a base may be natural or decimal, but means the same on both sides.
    is_open = any(part.op == "log" and len(part.args) == 1 for side in (left, right) for part in walk(side))
    decisions = [NodePair(left, right, base).is_equal(tolerance) for base in ([None, 10] if is_open else [None])]
    return True if True in decisions else (None if None in decisions else False)


def has_value(node: Node) -> bool:
    if has_constant(node, "infty"):
        return find_infinity(node) != 0
    pair = NodePair(node, node)
    return any(pair.evaluate_all(chain(list_points(pair.names), list_whole_points(pair.names))))


def find_infinity(node: Node) -> int:
    """Return 1 or -1 for plus or minus infinity, else 0."""
    if node.op == "negate":
        return -find_infinity(node.args[0])
    return int(node.op == "constant" and node.name == "infty")


class NodePair:
    """Two expressions of the same variables, and the base of \\log without one."""

    def __init__(self, left: Node, right: Node, log_base: int | None = None) -> None:
        self.left, self.right, self.log_base = left, right, log_base
        self.names = sorted(list_symbols(left) | list_symbols(right))
        self.digits = DIGITS + math.ceil(0.7 * max(check_size(left), check_size(right)) / DIGITS) * DIGITS

    def evaluate(self, point: Point, times: int = 1) -> tuple[Any, Any] | None:
        """Return both values at a point with `times` as many digits, or None if one is undefined."""
        place = tuple(point.items())
        left, right = (evaluate(side, place, self.log_base, times * self.digits) for side in (self.left, self.right))
        return None if left is None or right is None else (left, right)

    def evaluate_all(self, points: Iterable[Point]) -> Iterator[tuple[Point, tuple[Any, Any]]]:
        """Yield the points at which both are defined, with both values."""
        return ((point, pair) for point in points if (pair := self.evaluate(point)) is not None)

    def agrees_at(self, point: Point, pair: tuple[Any, Any]) -> bool:
        """Return whether two values are equal relative to their size, or both zero: zeros shrink as the precision grows."""
        with mpmath.workdps(self.digits):
            largest = max(map(abs, pair))
            if abs(pair[0] - pair[1]) <= largest * mpmath.mpf(10) ** (SLACK - self.digits):
                return True
        finer = self.evaluate(point, 4)
        with mpmath.workdps(4 * self.digits):
            return finer is not None and bool(max(map(abs, finer)) <= largest * mpmath.mpf(10) ** (-2 * self.digits))

    def is_equal(self, tolerance: Fraction) -> bool | None:
        """Return whether the values are equal at all points; None if too few points have values."""
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
        if set(self.names) <= INTEGER_NAMES:  # (-1)^n is a number only at whole n
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
        """Return whether one is a nonzero constant times the other; with `directed`, a positive constant."""
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
    """Yield fixed points with odd fractions, half of them negative, so that every machine gives the same verdict."""
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
    """Return the value at a point, or None. Cached, because comparing sets evaluates each member several times."""
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
    """Return the power. If the exponent is rational, use the real root of a negative base."""
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
    """Return the real odd root of a negative number, as -2 for the cube root of -8; None where the principal value is meant."""
    if degree is None or degree.denominator != 1 or degree % 2 == 0 or degree < 0 or not is_real(inner):
        return None
    real = mpmath.re(inner)
    return -(abs(real) ** (mpmath.mpf(1) / int(degree))) if real < 0 else None
