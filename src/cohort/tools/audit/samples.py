r"""Rows that ship with the audit, for rewards that are audited without rows of their own; and texts for shape rewards.

The answers of other spellings (`right`) and the wrong ones (`wrong`) are written by hand: what the audit generates from a
gold covers numbers, and a verifier's worst mistakes are made on everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class AuditRow:
    """One row under audit: what the reward is given with every completion, and what is known to be right and wrong."""

    prompt: Any
    """Text or chat messages."""
    columns: Mapping[str, Any]
    gold: str = ""
    """The answer that the gold column stands for; "" where the row has none."""
    right: tuple[str, ...] = ()
    """Further answers that must be accepted."""
    wrong: tuple[str, ...] = ()
    """Further answers that must not be accepted."""
    demonstration: str = ""
    """A whole completion that is right."""
    solution: str = ""
    """For code: a program that passes the tests."""
    visible: tuple[int, ...] = field(default=())
    """For code: the positions of the tests that the prompt shows."""

    @property
    def is_chat(self) -> bool:
        return not isinstance(self.prompt, str)


def math_row(prompt: str, answer: Any, right: tuple[str, ...] = (), wrong: tuple[str, ...] = (), gold: str = "") -> AuditRow:
    return AuditRow(prompt, {"answer": answer}, gold or str(answer), right, wrong)


MATH_ROWS: tuple[AuditRow, ...] = (
    math_row("What is 17 + 25?", "42", wrong=("4 2", "42%")),
    math_row("Take 19 from 12.", "-7", right=("-7.0",), wrong=("7", "-77")),
    math_row("How many seconds are in two weeks?", "1209600", right=(r"1\,209\,600", "1 209 600"), wrong=("1209", "1,209,60")),
    math_row("What is a population of 1.234 thousand?", "1,234", right=("1234",), wrong=("1.234", "1", "234")),
    math_row("Halve 6.28.", "3.14", right=("3.140", "+3.14"), wrong=("3.1", r"\pi")),
    math_row("A half, as a decimal?", "0.5", right=(".5", r"\tfrac{1}{2}", r"\frac12"), wrong=("5", "0.05", "5%")),
    math_row("Divide 3 by 4.", "3/4", right=(r"\frac34",), wrong=("34", "4/3", "3", "0.7")),
    math_row(
        "Divide 5 by 8, in LaTeX.", r"\frac{5}{8}", right=(r"\frac58", "10/16"), wrong=(r"\frac{8}{5}", r"\frac{5}{9}", "58")
    ),
    math_row("One third?", r"\frac{1}{3}", wrong=("0.33", "0.333333", "3")),
    math_row("What share is 9 of 12, in per cent?", "75%", right=(r"75\%", "75.0%"), wrong=("75.5%", "57%", "7.5%")),
    math_row(
        "Simplify the square root of 12.",
        r"2\sqrt{3}",
        right=(r"2 \sqrt{3}",),
        wrong=(r"3\sqrt{2}", r"2\sqrt{5}", "2", r"2\sqrt{3}+1"),
    ),
    math_row(
        "A right angle in radians?",
        r"\frac{\pi}{2}",
        right=(r"\dfrac{\pi}{2}",),
        wrong=(r"\frac{\pi}{3}", r"\frac{2}{\pi}", r"\pi"),
    ),
    math_row(
        "Where do the lines meet?",
        "(3, 4)",
        right=("(3,4)", r"\left(3, 4\right)"),
        wrong=("(4, 3)", "(3, 5)", "3", "(3, 4, 5)"),
    ),
    math_row("For which x is x(1-x) not negative?", "[0, 1]", right=("[0,1]",), wrong=("[0, 2]", "[1, 0]", "0")),
    math_row("Expand (x+1)^2.", "x^2+2x+1", right=("x^2 + 2x + 1",), wrong=("x^2+2x+2", "x^2-2x+1", "x^2")),
    math_row("Which line has slope 2 through (0, 1)?", "y=2x+1", right=("y = 2x + 1",), wrong=("y=2x+2", "y=3x+1", "y=2x-1")),
    math_row("One over 2004 factorial?", r"\frac{1}{2004!}", wrong=(r"\frac{1}{2006!}", r"\frac{1}{2004}", "0")),
    math_row("Which option is right?", "B", right=(r"\text{B}",), wrong=("A", "C", "A, B, C, D")),
    math_row("Is 10 odd or even?", r"\text{even}", right=("even",), wrong=("odd", r"\text{odd}", "odd or even")),
    math_row("The capital of France?", "Paris", right=(r"\text{Paris}",), wrong=("Pari", "London", "Parisian")),
    math_row(
        "Natalia sold 48 clips, then half as many. How many?",
        "48/2 = 24 clips in May, 48 + 24 = 72 in all.\n#### 72",
        gold="72",
        wrong=("48", "24"),
    ),
    math_row("What is 6 times 9?", r"We multiply: $6 \cdot 9 = \boxed{54}$.", gold="54", wrong=("6", "9")),
    math_row("How many eggs are left?", 18, wrong=("1 8", "180")),
    math_row("The mean of 2 and 3?", 2.5, right=("5/2",), wrong=("2", "5")),
)
"""Golds of many kinds: whole, negative, long, decimal, fraction, LaTeX, per cent, root, pair, interval, polynomial, text."""

EXACT_ROWS: tuple[AuditRow, ...] = (
    AuditRow("The capital of France?", {"answer": "Paris"}, "Paris", wrong=("Pari", "Paris or London", "not Paris", "London")),
    AuditRow("What is 17 + 25?", {"answer": "42"}, "42", wrong=("42.0", "4 2", "The answer is 42.")),
    AuditRow("Sort: b, a, c", {"answer": "a, b, c"}, "a, b, c", wrong=("a, b", "a, b, c, d", "c, b, a")),
    AuditRow("Reverse: stop", {"answer": "pots"}, "pots", wrong=("stop", "pots and pans")),
    AuditRow("Yes or no: is 7 prime?", {"answer": "yes"}, "yes", wrong=("no", "yes or no", "yes no")),
    AuditRow("Write JSON.", {"answer": '{"a": [1, 2]}'}, '{"a": [1, 2]}', wrong=('{"a": [1, 2, 3]}', "{}")),
)

PLAIN_ROWS: tuple[AuditRow, ...] = (
    AuditRow("What is 17 + 25?", {"answer": "42"}, "42"),
    AuditRow("The capital of France?", {"answer": "Paris"}, "Paris"),
    AuditRow("Divide 3 by 4.", {"answer": "3/4"}, "3/4"),
)
"""For rewards of the shape alone, which read no gold."""


@dataclass(frozen=True)
class ShapeTexts:
    """Hand-written texts for a built-in reward of the shape."""

    right: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()


SHAPE_TEXTS: dict[str, ShapeTexts] = {
    "think_format": ShapeTexts(
        right=("<think>6*7</think> 42", "<think>\nSix sevens.\n</think>\n\nIt is 42.", "<think>a < b</think>\\boxed{42}"),
        wrong=(
            "",
            "42",
            "<think></think> 42",
            "<think> \n </think> 42",
            "<think>6*7</think>",
            "<think>6*7</think> \n ",
            "<think>6*7",
            "6*7</think> 42",
            "42 <think>6*7</think> 42",
            "<think>6</think><think>7</think> 42",
            "<think>6*7</think> 42 </think>",
            "<think><think>6*7</think> 42",
            "</think>6*7<think> 42",
        ),
    )
}
