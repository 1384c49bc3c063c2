r"""Where a completion says its final answer, and the answer column as text. Linear in the text, nothing is evaluated.

An answer is taken from a marker only: the last \boxed{}, a pattern of the recipe, "#### x", "answer is x"; never from the
thinking. `guess` is for the lenient score beside the reward, which also takes the last formula or number of the text.
"""

from __future__ import annotations

import math
import re
from typing import Any

from cohort.rewards.math.text import MAX_ANSWER_CHARS, normalise
from cohort.rewards.math.tree import MAX_NUMBER_CHARS
from cohort.rewards.text import THINK_TAG, last_boxed

PATTERN_LIMIT_S = 1.0
"""For one completion under a pattern of the recipe. Some patterns take for ever on some texts."""
GUESS_CHARS = 2000
"""The end of the text that a guess is made on."""

HASHES = re.compile(r"####[ \t]?([^\n]*)")
ANSWER_IS = re.compile(r"answer\s?(?:is\b|:)([^\n]*)", re.IGNORECASE)
SENTENCE_END = re.compile(r"[.?](?=\s)|[,;](?=\s[a-z]{2})")
FORMULA = re.compile(r"\$\$?([^$]+)\$\$?|\\\(((?:[^\\]|\\(?!\)))+)\\\)|\\\[((?:[^\\]|\\(?!\]))+)\\\]")
LAST_NUMBER = re.compile(r"[-−]?(?<![\w.])(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+)?[ ]?\\?%?")


class PatternTimeout(Exception):
    """The pattern took too long on this text."""


def outside_thinking(text: str) -> str:
    """The text without its <think> blocks; "" if there is nothing else. A block that never ends is thinking to the end.

    A block that a chat template opened in the prompt has only its closing tag here. One pass over the tags: a search
    per tag would be quadratic on a completion that is nothing but tags.
    """
    kept: list[str] = []
    start, inside = 0, False
    for tag in THINK_TAG.finditer(text):
        if tag.group() == "</think>":
            kept = kept if inside else []
            start, inside = tag.end(), False
        elif not inside:
            kept.append(text[start : tag.start()])
            inside = True
    return "".join(kept) + ("" if inside else text[start:])


def find_answer(completion: str, pattern: str = "") -> str | None:
    """The final answer as it is written, or None: without a marker there is no answer. Raises PatternTimeout."""
    text = outside_thinking(completion)
    found = last_boxed(text)
    if found is None and pattern:
        found = last_match(text, pattern)
    if found is None:
        found = after_hashes(text)
    if found is None:
        found = after_answer_is(text)
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


def after_hashes(text: str) -> str | None:
    """GSM8K's "#### 42". A Markdown heading uses the same mark, so the line must begin like a number."""
    lines = [match.group(1).strip() for match in HASHES.finditer(text)]
    numbers = [line for line in lines if line and (line[0].isdecimal() or line[0] in "+-−–$\\.(")]
    return numbers[-1] if numbers else None


def after_answer_is(text: str) -> str | None:
    """The rest of the sentence after the last "answer is" or "answer:"."""
    last = None
    for match in ANSWER_IS.finditer(text):
        last = match
    if last is None:
        return None
    rest = last.group(1).lstrip(" \t:*_")
    return SENTENCE_END.split(rest, maxsplit=1)[0] if rest else None


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
        found = boxed if boxed is not None else after_hashes(text)
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
