r"""Splits a completion into the steps that a process reward scores.

    >>> split_steps("2+2=4\n4*3=12")
    [Step(text='2+2=4', end=6), Step(text='4*3=12', end=12)]

`end` is the position to return with the step's reward: `[(step.end, judge(step.text)) for step in split_steps(text)]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a completion."""

    text: str
    """The step without its separator, otherwise unchanged."""
    end: int
    """Number of characters of the completion up to the end of the step, including its separator."""


def split_steps(text: str, separator: str = "\n", keep_empty: bool = False, *, pattern: str | None = None) -> list[Step]:
    r"""The steps of a text, in order. Together they cover all of it: each begins where the previous one ends.

    A separator belongs to the step before it. Pieces of white space are not steps: their characters belong to the previous step, or at
    the start of the text to the next one. keep_empty=True makes each of them a step. An empty text has no steps, any other at least
    one.

    `pattern` is a regular expression instead of the separator. To split *before* headings, which begin a step, use a lookahead, which
    matches no characters:

        >>> split_steps("Step 1: add. Step 2: carry.", pattern=r"(?=Step \d+:)")
        [Step(text='Step 1: add. ', end=13), Step(text='Step 2: carry.', end=27)]
    """
    if pattern is not None and separator != "\n":
        raise ValueError(f"split_steps: give separator or pattern, not both (got {separator!r} and {pattern!r}).")
    if not separator:
        raise ValueError('split_steps: separator is empty; give the text that ends a step, such as "\\n".')
    found = cut_pieces(text, re.compile(re.escape(separator) if pattern is None else pattern))
    if keep_empty:
        return [Step(piece, end) for piece, end in found]
    steps: list[Step] = []
    for piece, end in found:
        if steps and not piece.strip():
            steps[-1] = Step(steps[-1].text, end)
        elif steps and not steps[-1].text.strip():  # white space at the start of the text: it belongs to this step
            steps[-1] = Step(piece, end)
        else:
            steps.append(Step(piece, end))
    return steps


def cut_pieces(text: str, separator: re.Pattern[str]) -> Iterator[tuple[str, int]]:
    """(text before a separator, end of the separator) for each piece, also for the text after the last separator."""
    start = 0
    for found in separator.finditer(text):
        if found.end() > start:  # an empty match at the end of the last piece splits nothing
            yield text[start : found.start()], found.end()
            start = found.end()
    if start < len(text):
        yield text[start:], len(text)
