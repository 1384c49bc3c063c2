r"""Does the completion's final answer equal the gold answer? Exact and numeric match, no algebra, nothing evaluated.

Differs from the usual verifiers in what it refuses to do. It takes an answer only from a marker (\boxed{}, a pattern of
the recipe, "#### x", "answer is x") and never guesses the last number of the text; it compares numbers as exact
fractions, so 0.5 = 1/2 and 0.333 is not 1/3; a percentage is not a number (7% is not 7); a gold answer it cannot use
is an error of the row, never a reward. Every step is linear in the text, and numbers are bounded in length before
they are converted: a completion of a million digits, or 1e999999999, costs no more than a wrong answer.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from cohort.rewards.text import as_rows, last_boxed, text_of, visible_text

MAX_ANSWER_CHARS = 1000
"""A longer answer is compared as it stands: no normalising, no numbers."""
MAX_NUMBER_CHARS = 400
MAX_EXPONENT = 400

HASHES = re.compile(r"####[ \t]?([^\n]*)")
ANSWER_IS = re.compile(r"answer\s?(?:is\b|:)([^\n]*)", re.IGNORECASE)
SENTENCE_END = re.compile(r"[.?](?=\s)|[,;](?=\s[a-z]{2})")


def math_answer(
    completions: Sequence[Any], answer: Sequence[Any], pattern: str = "", tolerance: float = 0.0, **columns: Any
) -> list[float]:
    """1.0 where the completion's final answer equals the row's `answer`, else 0.0.

    `pattern` is a regular expression for the final answer (its last match, group 1 if it has one), used where there is
    no \\boxed{}. `tolerance` is an absolute difference that still counts as equal. Raises on a gold answer that is
    empty or no answer at all.
    """
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise ValueError(f"tolerance: a number from 0 up is expected, got {tolerance!r}")
    golds = [gold_text(gold) for gold in as_rows(answer, completions)]
    return [
        float(same_answer(find_answer(text_of(completion), pattern), gold, tolerance))
        for completion, gold in zip(completions, golds, strict=True)
    ]


def extract(completion: str, pattern: str = "") -> str | None:
    """The answer that is compared, in one form for all spellings of a number ("0.50" and 1/2 are both "1/2")."""
    found = find_answer(completion, pattern)
    if found is None or len(found) > MAX_ANSWER_CHARS:
        return found
    text = normalise(found)
    percent = "%" if text.endswith("%") else ""
    number = parse_number(text.removesuffix("%"))
    return (text if number is None else f"{number}{percent}") or None


def exact_match(completions: Sequence[Any], answer: Sequence[Any], ignore_case: bool = False, **columns: Any) -> list[float]:
    """1.0 where the completion (outside <think>, outer spaces aside) is the row's `answer`, letter for letter."""
    golds = [whole_text(plain_gold(gold), ignore_case) for gold in as_rows(answer, completions)]
    return [
        float(whole_text(text_of(completion), ignore_case) == gold) for completion, gold in zip(completions, golds, strict=True)
    ]


def whole_text(completion: str, ignore_case: bool = False) -> str:
    text = visible_text(completion).strip()
    return text.casefold() if ignore_case else text


# ---------------------------------------------------------------------------------------------------------------------
# Finding the answer in a text
# ---------------------------------------------------------------------------------------------------------------------


def find_answer(completion: str, pattern: str = "") -> str | None:
    """The final answer as it is written, or None: without a marker there is no answer."""
    text = visible_text(completion)
    found = last_boxed(text)
    if found is None and pattern:
        found = last_match(text, pattern)
    if found is None:
        found = after_hashes(text)
    if found is None:
        found = after_answer_is(text)
    return found.strip() or None if found is not None else None


def last_match(text: str, pattern: str) -> str | None:
    regex = re.compile(pattern)
    last = None
    for match in regex.finditer(text):
        last = match
    return None if last is None else last.group(1 if regex.groups else 0)


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


# ---------------------------------------------------------------------------------------------------------------------
# Comparing
# ---------------------------------------------------------------------------------------------------------------------


def same_answer(found: str | None, gold: str, tolerance: float = 0.0) -> bool:
    if found is None:
        return False
    if len(found) > MAX_ANSWER_CHARS:
        return found.strip() == gold.strip()
    left, right = normalise(found), normalise(gold)
    if left.endswith("%") != right.endswith("%"):
        return False
    left_number, right_number = parse_number(left.removesuffix("%")), parse_number(right.removesuffix("%"))
    if left_number is not None and right_number is not None:
        # repr gives the decimal a person wrote: 0.01 is a hundredth here, not its nearest binary fraction.
        return abs(left_number - right_number) <= Fraction(repr(float(tolerance)))
    return left == right and bool(left)


MINUS = dict.fromkeys("−–—‐‑‒﹣－", "-")
SPACE = dict.fromkeys("\u00a0\u2007\u2009\u200a\u202f\u3000\t\n\r", " ")
WIDE = {"＋": "+", "．": ".", "，": ",", "／": "/", "％": "%", "\u200b": "", "\ufeff": ""}
CHARACTERS = str.maketrans({**MINUS, **SPACE, **WIDE})

REPLACEMENTS = (
    (re.compile(r"\\(?:left|right|displaystyle)(?![A-Za-z])|\\!|\\[()\[\]]|\\?\$"), ""),
    (re.compile(r"\\[,;: ]|~|\\q?quad(?![A-Za-z])"), " "),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\(?:text|textbf|textrm|textit|mathrm|mathbf|mbox)[ ]?\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"[ ]+"), " "),
)
LOOSE_SPACE = re.compile(r"(?<![\w.])[ ]|[ ](?![\w.])")


def normalise(text: str) -> str:
    """One spelling for what is only typography. Superscripts stay what they are: 5² is not 52."""
    if not text.isascii():
        text = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text.translate(CHARACTERS))
    else:
        text = text.translate(CHARACTERS)
    for pattern, replacement in REPLACEMENTS:
        text = pattern.sub(replacement, text)
    text = text.strip(" *`").removesuffix(".").strip(" *`")
    # A space between two words or numbers separates them ("4 5" is not 45); any other is typography.
    return LOOSE_SPACE.sub("", text)


DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)"
DECIMAL = re.compile(rf"([+-]?)(?:({DIGITS})(?:\.(\d*))?|\.(\d+))(?:[eE]([+-]?\d{{1,6}}))?")
SLASH = re.compile(r"([^/]+)/([^/]+)")
FRAC = re.compile(r"([+-]?)\\frac(?:\{([^{}]+)\}\{([^{}]+)\}|(\d)(\d))")


def parse_number(text: str) -> Fraction | None:
    r"""12, 1,234.50, .5, 2e-3, 3/4, \frac{3}{4}, each with a sign. None: not a number, or one too long to be meant."""
    if not text or len(text) > MAX_NUMBER_CHARS:
        return None
    if match := DECIMAL.fullmatch(text):
        return decimal_value(match)
    if match := FRAC.fullmatch(text):
        quotient = divide(match.group(2) or match.group(4), match.group(3) or match.group(5))
        return -quotient if quotient is not None and match.group(1) == "-" else quotient
    if match := SLASH.fullmatch(text):
        return divide(match.group(1), match.group(2))
    return None


def decimal_value(match: re.Match[str]) -> Fraction | None:
    sign, whole, tail, bare_tail, exponent = match.groups()
    decimals = tail or bare_tail or ""
    power = int(exponent or 0) - len(decimals)
    if abs(power) > MAX_EXPONENT:
        return None
    digits = int((whole or "").replace(",", "").replace(" ", "") + decimals)
    value = Fraction(digits * 10**power) if power >= 0 else Fraction(digits, 10**-power)
    return -value if sign == "-" else value


def divide(top: str, bottom: str) -> Fraction | None:
    upper, lower = DECIMAL.fullmatch(top.strip()), DECIMAL.fullmatch(bottom.strip())
    if upper is None or lower is None:
        return None
    numerator, denominator = decimal_value(upper), decimal_value(lower)
    return numerator / denominator if numerator is not None and denominator else None


math_answer.extract = extract  # type: ignore[attr-defined]
math_answer.reads = ("completions", "answer")  # type: ignore[attr-defined]
math_answer.per_completion = True  # type: ignore[attr-defined]
exact_match.extract = whole_text  # type: ignore[attr-defined]
exact_match.reads = ("completions", "answer")  # type: ignore[attr-defined]
exact_match.per_completion = True  # type: ignore[attr-defined]
