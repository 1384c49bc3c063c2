r"""Runs in jailed workers only: are two answers the same where exact arithmetic does not tell?

    compare({"found": "\\frac{1}{\\sqrt{2}}", "gold": "\\frac{\\sqrt{2}}{2}", "tolerance": "0", "cpu_s": 1.0})  ->  {"verdict": "right"}

Expressions that cohort_verify.math.expressions can read are compared by value (cohort_verify.math.points): to 150 digits, relative to
their size, at several points if they have variables. What that reader does not know (sums, integrals, limits, ...) is read and judged
by Math-Verify; its yes counts only if both sides are plain expressions, nothing of the text was dropped on the way to
SymPy, and their values agree.
"""

from __future__ import annotations

import contextlib
import logging
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import math_verify
import sympy

from cohort_verify.math.compare import find_verdict
from cohort_verify.math.judge import ExactJudge, Sides
from cohort_verify.math.kinds import Value, list_leaves
from cohort_verify.math.points import FEWEST_POINTS, NodePair, Point, are_equal, has_value, list_points
from cohort_verify.math.readers import read_answer
from cohort_verify.math.text import normalise
from cohort_verify.math.tree import ARITHMETIC, Node, OutOfBounds, find_exact

NO_VALUE = "it has no value"
UNREAD = "it cannot be read, by Math-Verify neither"


class OutOfTime(BaseException):
    """The share of CPU time for this question is used up. No Exception, for Math-Verify and SymPy swallow those."""


def compare(message: Mapping[str, Any]) -> dict[str, str]:
    """The entry of the workers: {"verdict": "right", "wrong", "unevaluated", "unparsed", "gold" or "timeout", "detail": why}.

    A message without "found" asks whether its gold answer can be evaluated at all: "right" or "gold".
    """
    if "found" not in message:
        problem = find_gold_problem(str(message["gold"]), float(message.get("cpu_s", 0.0)))
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
    if judge.gold_unread and word != "right":
        return {"verdict": "gold", "detail": judge.gold_unread}
    return {"verdict": word or "wrong", "detail": judge.unread if word == "unparsed" else ""}


def find_gold_problem(text: str, cpu_s: float) -> str:
    """Why a gold answer has no value to compare with; "" if it has."""
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


class SymbolicJudge(ExactJudge):
    """The judge of the workers: leaves nothing open."""

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
            self.gold_unread = NO_VALUE
        return bool(decision)

    def compare_relations(self, found: Sides, gold: Sides, directed: bool) -> bool:
        left, right = (Node("add", (side[0], Node("negate", (side[1],)))) for side in (found, gold))
        return found == gold or NodePair(left, right).is_proportional(directed)

    def compare_by_sympy(self, found: Value, gold: Value) -> bool:
        left, right = make_sympy(found), make_sympy(gold)
        if left is None:
            self.unread = UNREAD
        elif right is None:
            self.gold_unread = UNREAD
        else:
            return are_same_expressions(left, right)
        return False


# ---------------------------------------------------------------------------------------------------------------------
# Math-Verify
# ---------------------------------------------------------------------------------------------------------------------

SYMPY = {
    "add": "Add", "multiply": "Mul", "power": "Pow", "ceil": "ceiling", "ln": "log", "arcsin": "asin", "arccos": "acos", "arctan": "atan",
}  # fmt: skip
"""Names of operations that differ there from ours."""
CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "infty": sympy.oo}
NAMES = re.compile(r"\\([A-Za-z]+)|([A-Za-z])|(\d+)")


def make_sympy(value: Value) -> Any:
    """An answer as a SymPy expression, or None. What our own reader understood is built from its tree, never read again."""
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
        return CONSTANTS[node.name]
    args = [build_sympy(arg) for arg in node.args]
    if node.op == "root":
        return args[0] ** (1 / args[1])
    return (ARITHMETIC.get(node.op) or getattr(sympy, SYMPY.get(node.op, node.op)))(*args)


def parse_by_math_verify(text: str) -> Any:
    """A SymPy expression that holds every letter and number of the text, or None."""
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
    """Whether nothing was dropped: Math-Verify takes what it understands and leaves the rest, such as the root of "4 sqrt(2)"."""
    held = sympy.srepr(expression)
    letters = {letter for _, letter, _ in NAMES.findall(text) if letter and letter not in "deiEI"}
    numbers = {digits.lstrip("0") or "0" for _, _, digits in NAMES.findall(text) if digits}
    return all(piece in held for piece in letters | numbers)


def are_same_expressions(found: Any, gold: Any) -> bool:
    """Math-Verify's yes, and the same value at points (or the same tree where nothing has a value)."""
    ours = {str(symbol): symbol for symbol in found.free_symbols}
    if set(ours) != set(map(str, gold.free_symbols)):
        return False
    # One symbol for one name: Math-Verify makes its own kinds of them.
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
    """A sum as its value; comparing two sums term by term may take for ever."""
    with contextlib.suppress(Exception):
        return expression.doit()
    return expression


def evaluate_sympy(expression: Any, point: Point) -> Any:
    with contextlib.suppress(Exception):
        places = {symbol: sympy.Rational(str(point[str(symbol)])) for symbol in expression.free_symbols}
        value = expression.subs(places).evalf(40)
        return value if value.is_number and value.is_finite and not value.has(sympy.Sum, sympy.Integral) else None
    return None


logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own time limits are off; ours are outside
# Math-Verify's tables are built by the first use; no question pays for that.
are_same_expressions(parse_by_math_verify(r"\sum_{n=1}^{3} n"), parse_by_math_verify(r"\sum_{k=1}^{3} k"))
