r"""Several boxes: those that only a comma, "and" or "or" joins are one list, \boxed{1} and \boxed{2}; else the last one counts."""

from __future__ import annotations

import re

from cohort.rewards.math.kinds import Value
from cohort.rewards.math.readers import MAX_ITEMS, read_answer
from cohort.rewards.math.text import MAX_ANSWER_CHARS, normalise
from cohort.rewards.math.tree import find_exact
from cohort.rewards.text import boxes_in

MAX_BETWEEN = 120
SET_AS_TEXT = re.compile(r"\\(?:text|textrm|mbox|mathrm)\s?\{([^{}]*)\}")
TYPOGRAPHY = re.compile(r"\\q?quad|\\[()\[\],;:!> \\]|[$~&*\s]")
NAME = r"[A-Za-z](?:_\{?\w{1,3}\}?)?(?: ?\([A-Za-z]\))?"
JOINT = re.compile(rf"(?:[,;]|(?:[,;] ?)?(?:and|or))(?: ?({NAME}) ?=)?")
GOLD_JOINT = re.compile(rf"(?:(?:[a-z]{{1,15}} )?(?:[,;]|(?:[,;] ?)?(?:and|or)))?(?: ?({NAME}) ?=)?")
"""A gold may also put boxes side by side, or a unit behind one."""
NAMED = re.compile(rf"(?<![A-Za-z\\])({NAME})\s?=[\s$]*(?:\\[(\[])?\s*$")


def joined_boxes(text: str, gold: bool = False) -> tuple[list[str], list[str]]:
    """(the last box and those joined with it, the boxes before these)."""
    boxes = boxes_in(text)
    contents = [text[start:end] for _, start, end in boxes]
    first, names = len(boxes) - 1, [""]
    while first > 0 and len(names) <= MAX_ITEMS:
        found = joint(text[boxes[first - 1][2] + 1 : boxes[first][0]], GOLD_JOINT if gold else JOINT)
        if found is None:
            break
        names[0] = found[1] or ""
        names.insert(0, "")
        first -= 1
    if first < len(boxes) - 1:
        named = NAMED.search(text[max(0, boxes[first][0] - MAX_BETWEEN) : boxes[first][0]])
        names[0] = named[1] if named else ""
    last = contents[first:]
    if all(names):
        last = [f"{name} = {content}" for name, content in zip(names, last, strict=True)]
    return last, contents[:first]


def joint(between: str, pattern: re.Pattern[str]) -> re.Match[str] | None:
    if len(between) > MAX_BETWEEN:
        return None
    return pattern.fullmatch(" ".join(TYPOGRAPHY.sub(" ", SET_AS_TEXT.sub(r" \1 ", between)).split()))


def final_boxed(text: str) -> str | None:
    """What a completion boxes in the end: joined boxes as a list, one that is only repeated once; None without a box."""
    last, _ = joined_boxes(text)
    return together(last) if last else None


def together(contents: list[str]) -> str:
    return contents[-1] if are_equal(contents) else "; ".join(contents)


def are_equal(contents: list[str]) -> bool:
    """Whether all say the same, letter for letter or as numbers: 1/2 and 0.5."""
    if len(contents) > MAX_ITEMS or any(len(content) > MAX_ANSWER_CHARS for content in contents):
        return False
    if len({normalise(content) for content in contents}) == 1:
        return True
    shapes = [shape for shape in map(read_answer, contents) if isinstance(shape, Value) and shape.node is not None]
    numbers = {(find_exact(shape.node), shape.unit) for shape in shapes if shape.node is not None and not shape.doubtful}
    return len(numbers) == 1 and len(shapes) == len(contents) and all(number is not None for number, _ in numbers)


def gold_boxed(text: str) -> str | None:
    """The answer of a gold with boxes, None without one. Different boxes that are no list leave open which is meant: ValueError."""
    last, before = joined_boxes(text, gold=True)
    if not last:
        return None
    unlike = [content for content in before if not any(are_equal([content, other]) for other in last)]
    if unlike:
        shown = ", ".join(repr(content[:60]) for content in [*unlike[-2:], last[-1]])
        raise ValueError(
            f"it has several boxes that differ ({shown}); keep the final answer alone in the column, or all in one box"
        )
    return together(last)
