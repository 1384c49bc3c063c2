r"""Where a completion says its final answer, and the answer column as text. Linear in the text, nothing is evaluated.

An answer is taken from a marker only: the last \boxed{}, a pattern of the recipe, or the last of "#### x" and "answer is x";
never from the thinking. `guess` is for the lenient score beside the reward, which also takes the last formula or number of the text.
"""

from __future__ import annotations

import math
import re
from typing import Any

from cohort.rewards.math.text import MAX_ANSWER_CHARS, normalise
from cohort.rewards.math.tree import MAX_NUMBER_CHARS
from cohort.rewards.text import last_boxed, outside_thinking

PATTERN_LIMIT_S = 1.0
"""For one completion under a pattern of the recipe. Some patterns take for ever on some texts."""
GUESS_CHARS = 2000
"""The end of the text that a guess is made on."""

BARE_BOX = re.compile(r"\\boxed[ ]?(-?\d+(?:\.\d+)?|[A-Za-z])(?=[ ]?(?:\$|\\[)\]]|\.?[ ]*(?:\n|$)|\.[ ]))")
r"""\boxed 7 before the end of the formula, the line or the sentence; \boxed 7 + 1 boxes nothing that is meant."""
HASHES = re.compile(r"(?<!#)####(?!#)((?:(?!####)[^\n])*)")
HEADING = re.compile(r"\d+[.)]\s+\S|\(?[A-Za-z0-9][.)]\s+[A-Za-z]{2}")
"""2. Compute the area; (a) First case"""
HASHED = re.compile(r"[\d+\-−–$\\.(€£]|[A-Za-z]\s?=")
"""How an answer behind #### begins: like a number or a formula, or x = 12."""
ANSWER_IS = re.compile(r"answer\s?(?:is\b|:)(?!\s(?:indeed\s)?(?:correct|reasonable|consistent|verified)\b)", re.IGNORECASE)
FILLERS = re.compile(r"(?:(?:therefore|thus|hence|then|simply|indeed|just)\s)*", re.IGNORECASE)
DISPLAYED = ("$$", "$$"), ("\\[", "\\]")
SENTENCE_END = re.compile(r"[.?](?=\s)|[,;](?=\s(?:and\s[a-z]{2}|(?!or\b|and\b)[a-z]{2}))|\s(?:because|since)\b")
"""A comma before "or", or before "and" with no word behind it, goes on with a list."""
FORMULA = re.compile(r"\$\$?([^$]+)\$\$?|\\\(((?:[^\\]|\\(?!\)))+)\\\)|\\\[((?:[^\\]|\\(?!\]))+)\\\]")
LAST_NUMBER = re.compile(r"[-−]?(?<![\w.])(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+)?[ ]?\\?%?")


class PatternTimeout(Exception):
    """The pattern took too long on this text."""


def find_answer(completion: str, pattern: str = "") -> str | None:
    """The final answer as it is written, or None: without a marker there is no answer. Raises PatternTimeout."""
    text = outside_thinking(completion)
    found = last_boxed(BARE_BOX.sub(r"\\boxed{\1}", text))
    if found is None and pattern:
        found = last_match(text, pattern)
    if found is None:
        # Whichever marker comes last in the text: what is said later corrects what was said before.
        _, found = max(after_hashes(text), after_answer_is(text), key=lambda marked: marked[0])
    return found.strip() or None if found is not None else None


def last_match(text: str, pattern: str) -> str | None:
    """The last match, its first group if it has one. Python's own re would hold every thread of the trainer meanwhile."""
    import regex

    compiled = regex.compile(pattern)
    last = None
    try:
        for match in compiled.finditer(text, timeout=PATTERN_LIMIT_S, concurrent=True):
            last = match
    except TimeoutError:
        raise PatternTimeout(f"the pattern took more than {PATTERN_LIMIT_S:g} s on this completion") from None
    return None if last is None else last.group(1 if compiled.groups else 0)


Marked = tuple[int, str | None]
"""Where a marker stands (-1: nowhere), and the answer behind it."""


def after_hashes(text: str) -> Marked:
    """GSM8K's "#### 42", the last one. Markdown's headings use the same mark, so the line must begin like an answer."""
    last: Marked = (-1, None)
    for match in HASHES.finditer(text):
        line = match.group(1).strip(" \t*_`")
        if line and not HEADING.match(line) and (HASHED.match(line) or line[0].isdecimal()):
            last = (match.start(), line)
    return last


def after_answer_is(text: str) -> Marked:
    """The rest of the sentence after the last "answer is" or "answer:"; it may begin on a line of its own."""
    last = None
    for match in ANSWER_IS.finditer(text):
        last = match
    if last is None:
        return -1, None
    rest = text[last.end() : last.end() + 2 * MAX_ANSWER_CHARS].lstrip(" \t:*_\n")
    rest = rest[FILLERS.match(rest).end() :]  # type: ignore[union-attr]  # it matches nothing at least
    for opening, closing in DISPLAYED:
        if rest.startswith(opening) and (end := rest.find(closing, len(opening))) > 0:
            return last.start(), rest[len(opening) : end]
    rest = rest.partition("\n")[0]
    return last.start(), SENTENCE_END.split(rest, maxsplit=1)[0] if rest else None


def guess(completion: str) -> str | None:
    """What a reader would take for the answer where no marker says so: the last formula, else the last number."""
    text = outside_thinking(completion)
    if not text.strip():
        text = completion
        if (boxed := last_boxed(text)) is not None:
            return boxed.strip() or None
    text = text[-GUESS_CHARS:]
    formulas, numbers = list(FORMULA.finditer(text)), list(LAST_NUMBER.finditer(text))
    if formulas and (not numbers or formulas[-1].end() >= numbers[-1].end()):
        return next(part for part in formulas[-1].groups() if part is not None).strip() or None
    return numbers[-1].group().strip() if numbers else None


# ---------------------------------------------------------------------------------------------------------------------
# Gold answers
# ---------------------------------------------------------------------------------------------------------------------


def plain_gold(gold: Any) -> str:
    """A gold cell as text. Whatever cannot be an answer raises: it must never be equal to a completion."""
    if isinstance(gold, str):
        text = gold
    elif isinstance(gold, bool) or gold is None or not hasattr(gold, "__float__"):
        raise ValueError(f"unusable gold answer {shown(gold)}: a string or a number is expected")
    elif isinstance(gold, int):
        text = str(gold) if gold.bit_length() < 3 * MAX_NUMBER_CHARS else ""
    elif not math.isfinite(float(gold)):
        raise ValueError(f"unusable gold answer {shown(gold)}: it is not finite")
    else:
        text = str(gold)
    if not text.strip():
        raise ValueError(f"unusable gold answer {shown(gold)}: it is empty or too long")
    return text


def gold_text(gold: Any) -> str:
    r"""The gold answer to compare with; a whole solution ending in "#### x" or \boxed{x} gives its x."""
    text = plain_gold(gold)
    if "\\boxed" in text or "####" in text:
        boxed = last_boxed(text)
        found = boxed if boxed is not None else after_hashes(text)[1]
        if found is None:
            raise ValueError(f"unusable gold answer {shown(gold)}: its final answer cannot be read")
        text = found
    if len(text) > MAX_ANSWER_CHARS or not normalise(text):
        raise ValueError(f"unusable gold answer {shown(gold)}: it is empty or too long")
    return text


def shown(gold: Any) -> str:
    if isinstance(gold, int) and gold.bit_length() > 10_000:
        return f"of {gold.bit_length()} bits"
    text = repr(gold)
    return text if len(text) <= 200 else text[:200] + "..."
