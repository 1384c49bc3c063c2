r"""Variants of a reference answer: other spellings of the same answer, and wrong answers near it.

    rewrite_reference("1/2", by_value=True)   ->  \frac{1}{2}, 0.5, ...      must be accepted
    mutate_reference("42")                    ->  43, -42, 24, 42.5, ...     must not be accepted

Numbers are exact fractions, so that no rewrite is only approximately right and no mutation right by accident. Other answers are only
rewritten in their spacing. Independent of the rewards on purpose: an audit with the reward's own parser would share its mistakes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from cohort_verify.text import find_last_box

OTHER_ROW = "answer of another row"
MAX_NUMBER_CHARS = 60
"""A longer number is treated as text."""

INTEGER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)")
DECIMAL = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?\.\d+")
SLASH = re.compile(r"([+-]?\d+)\s*/\s*(\d+)")
FRAC = re.compile(r"([+-]?)\\[dt]?frac\{(\d+)\}\{(\d+)\}")
NUMBER_TOKEN = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?")
WORDS = re.compile(r"[A-Za-z][A-Za-z ]+[A-Za-z]")
"""An answer in words: parts of it, and words that contain it, are wrong."""


class Variant(NamedTuple):
    """A reference answer in another spelling (still right), or changed (wrong)."""

    label: str
    """The change: "thousands separators", "off by one"."""
    text: str


def read_reference(cell: Any) -> str:
    r"""The answer in a cell of the reference column; of a whole solution that ends in "#### x" or \boxed{x}, its x."""
    if isinstance(cell, list | tuple) and cell:
        cell = cell[0]
    if cell is None:
        return ""
    text = str(cell)
    if "####" in text:
        return text.rsplit("####", 1)[1].strip()
    boxed = find_last_box(text)
    return (text if boxed is None else boxed).strip()


def read_number(text: str) -> Fraction | None:
    """The exact value of a text that is a number; None if it is not, or not certainly."""
    text = text.strip().replace("−", "-")
    if not text or len(text) > MAX_NUMBER_CHARS:
        return None
    if INTEGER.fullmatch(text) or DECIMAL.fullmatch(text):
        return Fraction(text.replace(",", ""))
    if match := SLASH.fullmatch(text):
        return Fraction(int(match[1]), int(match[2])) if int(match[2]) else None
    if match := FRAC.fullmatch(text):
        return Fraction(int(match[1] + match[2]), int(match[3])) if int(match[3]) else None
    return None


def is_same_answer(left: str, right: str) -> bool:
    """Whether two answers are certainly the same: by value, or as text without spaces, case and dollar signs."""
    first, second = read_number(left), read_number(right)
    if first is not None and second is not None:
        return first == second
    return squeeze_text(left) == squeeze_text(right)


def squeeze_text(text: str) -> str:
    return re.sub(r"[\s$]+", "", text).casefold()


def is_integer(text: str) -> bool:
    return bool(INTEGER.fullmatch(text.strip()))


# ---------------------------------------------------------------------------------------------------------------------
# Still right
# ---------------------------------------------------------------------------------------------------------------------


def rewrite_reference(reference: str, by_value: bool) -> list[Variant]:
    """Spellings of the same answer. by_value: numbers are compared by value, and typography is ignored."""
    found = [Variant("spaces around it", f"  {reference} ")]
    if by_value:
        value = read_number(reference)
        found.append(Variant("dollar signs", f"${reference}$"))
        if value is not None:
            found += rewrite_number(reference, value)
    return drop_repeats(found, reference)


def rewrite_number(reference: str, value: Fraction) -> Iterator[Variant]:
    sign, size = ("-" if value < 0 else ""), abs(value)
    top, bottom = size.numerator, size.denominator
    if bottom == 1:
        yield Variant("without separators", f"{sign}{top}")
        yield Variant("with .0", f"{sign}{top}.0")
        if top >= 1000:
            yield Variant("thousands separators", f"{sign}{top:,}")
            yield Variant("LaTeX thousands separators", f"{sign}{top:,}".replace(",", "{,}"))
    else:
        yield Variant("fraction", f"{sign}{top}/{bottom}")
        yield Variant("LaTeX fraction", f"{sign}\\frac{{{top}}}{{{bottom}}}")
        yield Variant("LaTeX display fraction", f"{sign}\\dfrac{{{top}}}{{{bottom}}}")
        if decimals := write_exact_decimal(size):
            yield Variant("decimal", f"{sign}{decimals}")
            yield Variant("trailing zero", f"{sign}{decimals}0")
    if sign:
        yield Variant("typographic minus", f"−{reference.lstrip('-−')}")


def write_exact_decimal(value: Fraction) -> str:
    """The decimal form; "" if it does not terminate."""
    places = next((count for count in range(13) if 10**count % value.denominator == 0), None)
    if places is None:
        return ""
    digits = str(value.numerator * 10**places // value.denominator).rjust(places + 1, "0")
    return f"{digits[:-places]}.{digits[-places:]}" if places else digits


# ---------------------------------------------------------------------------------------------------------------------
# Wrong
# ---------------------------------------------------------------------------------------------------------------------


def mutate_reference(reference: str, others: Sequence[str] = ()) -> list[Variant]:
    """Wrong answers near the reference, most likely first; `others` are the answers of other rows."""
    value = read_number(reference)
    found = list(mutate_number(reference, value) if value is not None else mutate_text(reference))
    found += [Variant(OTHER_ROW, other) for other in others]
    return drop_right(found, reference)


def mutate_number(reference: str, value: Fraction) -> Iterator[Variant]:
    if value.denominator == 1:
        yield Variant("off by one", str(value + 1))
        yield Variant("off by one", str(value - 1))
        yield Variant("sign", str(-value))
        digits = str(abs(value))
        if len(digits) > 1:
            yield Variant("digits swapped", ("-" if value < 0 else "") + digits[:-2] + digits[-1] + digits[-2])
        yield Variant("ten times", str(value * 10))
    elif DECIMAL.fullmatch(reference.strip()):
        step = Fraction(1, 10 ** len(reference.strip().rpartition(".")[2]))
        yield Variant("last digit", write_signed_decimal(value + step))
        yield Variant("off by one", write_signed_decimal(value + 1))
        yield Variant("sign", write_signed_decimal(-value))
    else:
        top, bottom = value.numerator, value.denominator
        yield Variant("numerator off by one", f"{top + 1}/{bottom}")
        yield Variant("upside down", f"{bottom}/{top}" if top > 0 else f"-{bottom}/{-top}")
        yield Variant("sign", f"{-top}/{bottom}")
        yield Variant("digits run together", f"{top}{bottom}")


def write_signed_decimal(value: Fraction) -> str:
    return ("-" if value < 0 else "") + (write_exact_decimal(abs(value)) or str(abs(value)))


def mutate_text(reference: str) -> Iterator[Variant]:
    if len(reference) == 1:
        yield Variant("next letter", chr(ord(reference) + 1))
    else:
        yield Variant("last character missing", reference[:-1])
        yield Variant("a character more", f"{reference}x")
    digit = re.search(r"\d", reference)
    if digit:
        changed = str((int(digit[0]) + 1) % 10) if digit[0].isascii() else "1"
        yield Variant("a digit changed", reference[: digit.start()] + changed + reference[digit.end() :])


def make_near_misses(reference: str, tolerance: float = 0.0) -> list[Variant]:
    """Numbers close to the reference, but outside `tolerance`."""
    value = read_number(reference)
    if value is None:
        return []
    room = 4 * Fraction(repr(float(tolerance)))
    found = []
    for label, step in (("a hundredth", Fraction(1, 100)), ("a half", Fraction(1, 2))):
        if step > room:
            found.append(Variant(f"{label} more", write_signed_decimal(value + step)))
            found.append(Variant(f"{label} less", write_signed_decimal(value - step)))
    if value.denominator != 1 and not write_exact_decimal(abs(value)):
        rounded = Fraction(round(abs(value) * 100), 100)
        if abs(rounded - abs(value)) > room:
            found.append(Variant("rounded to two places", write_signed_decimal(rounded if value > 0 else -rounded)))
    return [variant for variant in drop_right(found, reference) if "/" not in variant.text]


def cut_reference(reference: str) -> list[Variant]:
    """The reference without its first or its last character."""
    value = read_number(reference)
    whole = str(abs(value)) if value is not None and value.denominator == 1 else reference if WORDS.fullmatch(reference) else ""
    if len(whole) < 2:
        return []
    return drop_right([Variant("first character missing", whole[1:]), Variant("last character missing", whole[:-1])], reference)


FAR_NUMBERS = ("8861", "70553", "296", "51730", "64", "5", "9", "7", "938", "3")
FAR_WORDS = ("quagmire", "xylophonists", "oz", "hub", "dwelling", "Q", "D")


def choose_far_answers(reference: str) -> list[str]:
    """Two wrong answers that are unrelated to the reference, if possible one longer and one shorter: with another first and last
    character, other digits, and a distant value."""
    value = read_number(reference)
    bare = reference.strip().lstrip("+-").casefold()
    candidates = FAR_NUMBERS if value is not None else FAR_WORDS

    def differs(candidate: str) -> bool:
        text = candidate.casefold()
        if not bare or text[0] == bare[0] or text[-1] == bare[-1] or text in bare or bare in text:
            return False
        return value is None or abs(int(text) - abs(value)) > max(abs(value) / 2, Fraction(2))

    fitting = [text for text in candidates if differs(text)]
    longer_, shorter = [t for t in fitting if len(t) > len(bare)], [t for t in fitting if len(t) < len(bare)]
    return [*longer_[:1], *(shorter or [t for t in fitting if t not in longer_[:1]])[:1]]


def continue_reference(reference: str) -> list[Variant]:
    """The reference as the beginning of an expression with another value."""
    value = read_number(reference)
    if value is None or abs(value) <= 1:
        return []
    return [
        Variant("times a root", f"{reference}\\sqrt{{2}}"),
        Variant("squared", f"{reference}^2" if value.denominator == 1 else f"({reference})^2"),
        Variant("times x", f"{reference}x"),
        Variant("power of ten", f"{reference} \\times 10^{{3}}"),
        Variant("plus one", f"{reference}+1"),
    ]


def relate_to_reference(reference: str) -> list[Variant]:
    """Relations to the reference: every other number, or all numbers on one side of it."""
    if read_number(reference) is None:
        return []
    return [
        Variant("not equal", f"\\ne {reference}"),
        Variant("greater", f">{reference}"),
        Variant("at least", f"\\ge {reference}"),
        Variant("less", f"< {reference}"),
    ]


def lengthen_reference(reference: str) -> list[Variant]:
    """The reference inside a longer number or word."""
    if is_integer(reference):
        digits = reference.strip().lstrip("+-").replace(",", "")
        return [Variant("digit before", f"1{digits}"), Variant("digit after", f"{digits}7"), Variant("inside", f"3{digits}9")]
    if WORDS.fullmatch(reference):
        return [
            Variant("word before", f"un{reference}"),
            Variant("word after", f"{reference}like"),
            Variant("inside", f"un{reference}like"),
        ]
    return []


def disguise_answers(reference: str, wrong: str) -> list[Variant]:
    """Wrong answers in characters that look like others, are invisible, or reverse the text direction."""
    found: list[Variant] = []
    if is_integer(wrong):
        digits = wrong.lstrip("+-")
        found.append(Variant("full-width digits", wrong.translate({ord("0") + n: 0xFF10 + n for n in range(10)})))
        found.append(Variant("zero-width space", f"{digits[:1]}\u200b{digits[1:]}"))
        if any(digit in wrong for digit in "036"):
            found.append(Variant("Cyrillic letters", wrong.translate({ord("0"): "О", ord("3"): "З", ord("6"): "б"})))
    elif wrong:
        found.append(Variant("zero-width space", f"{wrong[:1]}\u200b{wrong[1:]}"))
    if is_integer(reference):
        digits = reference.strip().lstrip("+-").replace(",", "")
        if len(digits) > 1:
            superscript = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
            found.append(Variant("superscript", digits[:-1] + digits[-1].translate(superscript)))
        if len(digits) > 1 and digits != digits[::-1]:
            found.append(Variant("right-to-left override", f"\u202e{digits[::-1]}\u202c"))
    return found


def drop_repeats(variants: Sequence[Variant], reference: str) -> list[Variant]:
    """Each text once, without the reference itself."""
    found: dict[str, Variant] = {}
    for variant in variants:
        found.setdefault(variant.text, variant)
    return [variant for text, variant in found.items() if text != reference]


def drop_right(variants: Sequence[Variant], reference: str) -> list[Variant]:
    """The distinct variants that are certainly wrong."""
    return [variant for variant in drop_repeats(variants, reference) if not is_same_answer(variant.text, reference)]


# ---------------------------------------------------------------------------------------------------------------------
# Searching a text for the reference answer
# ---------------------------------------------------------------------------------------------------------------------


def contains_reference(text: str, reference: str) -> bool:
    return bool(reference) and reference.casefold() in text.casefold()


def has_token(text: str, reference: str) -> bool:
    """Whether the text contains the reference, not as a part of a longer number or word."""
    return bool(reference) and bool(re.search(rf"(?<![\w.])(?<!\d,){re.escape(reference)}(?!\w|[.,]\d)", text, re.IGNORECASE))


def is_first_answer(text: str, reference: str) -> bool:
    """Whether a careless parser would read the reference as the first number of the text; if it is no number, whether it occurs."""
    if read_number(reference) is None:
        return contains_reference(text, reference)
    first = re.search(r"-?\d[\d,]*(?:\.\d+)?", text)
    loose = re.search(r"\d+", text)
    whole = reference.strip().lstrip("+-")
    return bool(
        (first and is_same_answer(first[0].rstrip(","), reference))
        or (loose and loose[0] == whole)
        or text.lstrip().startswith(reference)
    )


def rearrange_reference(reference: str) -> list[Variant]:
    """For an answer in words: its letters and its words in another order, and a text of the same length with other letters."""
    words = reference.split()
    if not words or not all(word.isalpha() and word.isascii() and len(word) > 2 for word in words):
        return []
    others = "".join("q" if letter != " " else letter for letter in reference.casefold())
    made = [
        ("letters in another order", reference[::-1]),
        ("as long as the reference", others),
        ("words in another order", " ".join(words[::-1])),
    ]
    return [Variant(label, text) for label, text in made if not is_same_answer(text, reference)]
