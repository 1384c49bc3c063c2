r"""Cutting a completion into the steps that a process reward judges.

    >>> split_steps("2+2=4\n4*3=12")
    [Step(text='2+2=4', end=6), Step(text='4*3=12', end=12)]

`end` is the position to report with the step's reward: `[(step.end, judge(step.text)) for step in split_steps(text)]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a completion."""

    text: str
    """What the step says: without the separator that ends it, and otherwise as it was written."""
    end: int
    """Characters of the completion up to and including the end of the step, its separator included."""


def split_steps(text: str, separator: str = "\n", keep_empty: bool = False, *, pattern: str | None = None) -> list[Step]:
    r"""The steps of a text, in order. Together they cover all of it: each begins where the one before ends.

    A separator belongs to the step it ends, since that is where the author of the text decided to go on. Pieces with
    nothing but white space in them are no steps: their characters belong to the step before, at the start of the text
    to the step after. keep_empty=True makes each of them a step. An empty text has no steps, any other at least one.

    `pattern` takes a regular expression in place of the separator. To cut *before* headings, which open a step and do
    not end one, let it look ahead, so that it takes no characters itself:

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
        elif steps and not steps[-1].text.strip():  # white space so far: it becomes the beginning of this step
            steps[-1] = Step(piece, end)
        else:
            steps.append(Step(piece, end))
    return steps


def cut_pieces(text: str, separator: re.Pattern[str]) -> Iterator[tuple[str, int]]:
    """(text before a separator, end of the separator), and what is left after the last one."""
    start = 0
    for found in separator.finditer(text):
        if found.end() > start:  # a match of no characters where the last piece ended cuts nothing off
            yield text[start : found.start()], found.end()
            start = found.end()
    if start < len(text):
        yield text[start:], len(text)
