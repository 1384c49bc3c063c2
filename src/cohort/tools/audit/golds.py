r"""What is known of a gold answer: other spellings of the same answer, and answers near it that are wrong.

    rewrite_gold("1/2", by_value=True)   ->  \frac{1}{2}, 0.5, ...      must be accepted
    mutate_gold("42")                    ->  43, -42, 24, 42.5, ...     must not be accepted

Numbers are exact fractions, so that no rewrite is only nearly right and no mutation right by accident. What is not a
number is rewritten in its spacing alone. Independent of the rewards on purpose: an auditor that shares the parser of
what it audits would share its mistakes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from cohort_verify.text import find_last_box

OTHER_ROW = "answer of another row"
MAX_NUMBER_CHARS = 60
"""A longer number is treated as text: nobody writes it by hand."""

INTEGER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)")
DECIMAL = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?\.\d+")
SLASH = re.compile(r"([+-]?\d+)\s*/\s*(\d+)")
FRAC = re.compile(r"([+-]?)\\[dt]?frac\{(\d+)\}\{(\d+)\}")
NUMBER_TOKEN = re.compile(r"(?<![\w.])-?\d+(?:,\d{3})*(?:\.\d+)?")
WORDS = re.compile(r"[A-Za-z][A-Za-z ]+[A-Za-z]")
"""A gold of words: pieces of it, and words it is a piece of, are wrong."""


class Variant(NamedTuple):
    """A gold written otherwise (still right), or changed (wrong)."""

    label: str
    """What was done to it: "thousands separators", "off by one"."""
    text: str


def read_gold(cell: Any) -> str:
    r"""The answer in a gold cell; a whole solution that ends in "#### x" or \boxed{x} gives its x."""
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
    """The number that a text is, exactly; None where it is none, or not surely one."""
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
    """Whether two answers are surely the same: by value, or as text with spaces, case and dollar signs aside."""
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


def rewrite_gold(gold: str, by_value: bool) -> list[Variant]:
    """Spellings of the same answer. by_value: numbers count by what they are worth, and typography does not count."""
    found = [Variant("spaces around it", f"  {gold} ")]
    if by_value:
        value = read_number(gold)
        found.append(Variant("dollar signs", f"${gold}$"))
        if value is not None:
            found += rewrite_number(gold, value)
    return drop_repeats(found, gold)


def rewrite_number(gold: str, value: Fraction) -> Iterator[Variant]:
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
        yield Variant("typographic minus", f"−{gold.lstrip('-−')}")


def write_exact_decimal(value: Fraction) -> str:
    """The decimal form where it ends; "" where it does not."""
    places = next((count for count in range(13) if 10**count % value.denominator == 0), None)
    if places is None:
        return ""
    digits = str(value.numerator * 10**places // value.denominator).rjust(places + 1, "0")
    return f"{digits[:-places]}.{digits[-places:]}" if places else digits


# ---------------------------------------------------------------------------------------------------------------------
# Wrong
# ---------------------------------------------------------------------------------------------------------------------


def mutate_gold(gold: str, others: Sequence[str] = ()) -> list[Variant]:
    """Wrong answers near the gold, the likeliest first; `others` are the answers of other rows."""
    value = read_number(gold)
    found = list(mutate_number(gold, value) if value is not None else mutate_text(gold))
    found += [Variant(OTHER_ROW, other) for other in others]
    return drop_right(found, gold)


def mutate_number(gold: str, value: Fraction) -> Iterator[Variant]:
    if value.denominator == 1:
        yield Variant("off by one", str(value + 1))
        yield Variant("off by one", str(value - 1))
        yield Variant("sign", str(-value))
        digits = str(abs(value))
        if len(digits) > 1:
            yield Variant("digits swapped", ("-" if value < 0 else "") + digits[:-2] + digits[-1] + digits[-2])
        yield Variant("ten times", str(value * 10))
    elif DECIMAL.fullmatch(gold.strip()):
        step = Fraction(1, 10 ** len(gold.strip().rpartition(".")[2]))
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


def mutate_text(gold: str) -> Iterator[Variant]:
    if len(gold) == 1:
        yield Variant("next letter", chr(ord(gold) + 1))
    else:
        yield Variant("last character missing", gold[:-1])
        yield Variant("a character more", f"{gold}x")
    digit = re.search(r"\d", gold)
    if digit:
        changed = str((int(digit[0]) + 1) % 10) if digit[0].isascii() else "1"
        yield Variant("a digit changed", gold[: digit.start()] + changed + gold[digit.end() :])


def make_near_misses(gold: str, tolerance: float = 0.0) -> list[Variant]:
    """Numbers close to the gold, but further away than `tolerance`."""
    value = read_number(gold)
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
    return [variant for variant in drop_right(found, gold) if "/" not in variant.text]


def cut_gold(gold: str) -> list[Variant]:
    """A piece of the gold: its first or its last character is missing."""
    value = read_number(gold)
    whole = str(abs(value)) if value is not None and value.denominator == 1 else gold if WORDS.fullmatch(gold) else ""
    if len(whole) < 2:
        return []
    return drop_right([Variant("first character missing", whole[1:]), Variant("last character missing", whole[:-1])], gold)


FAR_NUMBERS = ("8861", "70553", "296", "51730", "64", "5", "9", "7", "938", "3")
FAR_WORDS = ("quagmire", "xylophonists", "oz", "hub", "dwelling", "Q", "D")


def choose_far_answers(gold: str) -> list[str]:
    """Two wrong answers that have nothing in common with the gold, one longer and one shorter where there is one: another first
    and last character, other digits, and no number near it."""
    value = read_number(gold)
    bare = gold.strip().lstrip("+-").casefold()
    candidates = FAR_NUMBERS if value is not None else FAR_WORDS

    def differs(candidate: str) -> bool:
        text = candidate.casefold()
        if not bare or text[0] == bare[0] or text[-1] == bare[-1] or text in bare or bare in text:
            return False
        return value is None or abs(int(text) - abs(value)) > max(abs(value) / 2, Fraction(2))

    fitting = [text for text in candidates if differs(text)]
    longer_, shorter = [t for t in fitting if len(t) > len(bare)], [t for t in fitting if len(t) < len(bare)]
    return [*longer_[:1], *(shorter or [t for t in fitting if t not in longer_[:1]])[:1]]


def continue_gold(gold: str) -> list[Variant]:
    """The gold as the beginning of an expression that is worth something else."""
    value = read_number(gold)
    if value is None or abs(value) <= 1:
        return []
    return [
        Variant("times a root", f"{gold}\\sqrt{{2}}"),
        Variant("squared", f"{gold}^2" if value.denominator == 1 else f"({gold})^2"),
        Variant("times x", f"{gold}x"),
        Variant("power of ten", f"{gold} \\times 10^{{3}}"),
        Variant("plus one", f"{gold}+1"),
    ]


def relate_to_gold(gold: str) -> list[Variant]:
    """A relation to the gold: every number but it, or all on one side of it."""
    if read_number(gold) is None:
        return []
    return [
        Variant("not equal", f"\\ne {gold}"),
        Variant("greater", f">{gold}"),
        Variant("at least", f"\\ge {gold}"),
        Variant("less", f"< {gold}"),
    ]


def lengthen_gold(gold: str) -> list[Variant]:
    """The gold as a part of a longer number or word."""
    if is_integer(gold):
        digits = gold.strip().lstrip("+-").replace(",", "")
        return [Variant("digit before", f"1{digits}"), Variant("digit after", f"{digits}7"), Variant("inside", f"3{digits}9")]
    if WORDS.fullmatch(gold):
        return [Variant("word before", f"un{gold}"), Variant("word after", f"{gold}like"), Variant("inside", f"un{gold}like")]
    return []


def disguise_answers(gold: str, wrong: str) -> list[Variant]:
    """Wrong answers in characters that look like others, that cannot be seen, or that turn the line round."""
    found: list[Variant] = []
    if is_integer(wrong):
        digits = wrong.lstrip("+-")
        found.append(Variant("full-width digits", wrong.translate({ord("0") + n: 0xFF10 + n for n in range(10)})))
        found.append(Variant("zero-width space", f"{digits[:1]}\u200b{digits[1:]}"))
        if any(digit in wrong for digit in "036"):
            found.append(Variant("Cyrillic letters", wrong.translate({ord("0"): "О", ord("3"): "З", ord("6"): "б"})))
    elif wrong:
        found.append(Variant("zero-width space", f"{wrong[:1]}\u200b{wrong[1:]}"))
    if is_integer(gold):
        digits = gold.strip().lstrip("+-").replace(",", "")
        if len(digits) > 1:
            superscript = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
            found.append(Variant("superscript", digits[:-1] + digits[-1].translate(superscript)))
        if len(digits) > 1 and digits != digits[::-1]:
            found.append(Variant("right-to-left override", f"\u202e{digits[::-1]}\u202c"))
    return found


def drop_repeats(variants: Sequence[Variant], gold: str) -> list[Variant]:
    """Each text once, and none that is the gold as it stands."""
    found: dict[str, Variant] = {}
    for variant in variants:
        found.setdefault(variant.text, variant)
    return [variant for text, variant in found.items() if text != gold]


def drop_right(variants: Sequence[Variant], gold: str) -> list[Variant]:
    """The distinct ones that are surely wrong."""
    return [variant for variant in drop_repeats(variants, gold) if not is_same_answer(variant.text, gold)]


# ---------------------------------------------------------------------------------------------------------------------
# Finding a gold in a text
# ---------------------------------------------------------------------------------------------------------------------


def contains_gold(text: str, gold: str) -> bool:
    return bool(gold) and gold.casefold() in text.casefold()


def has_token(text: str, gold: str) -> bool:
    """Whether the gold stands in the text on its own, not as a part of a longer number or word."""
    return bool(gold) and bool(re.search(rf"(?<![\w.])(?<!\d,){re.escape(gold)}(?!\w|[.,]\d)", text, re.IGNORECASE))


def is_first_answer(text: str, gold: str) -> bool:
    """Whether the first number of the text, as a careless reader sees it, is the gold; for other golds, whether it occurs."""
    if read_number(gold) is None:
        return contains_gold(text, gold)
    first = re.search(r"-?\d[\d,]*(?:\.\d+)?", text)
    loose = re.search(r"\d+", text)
    whole = gold.strip().lstrip("+-")
    return bool(
        (first and is_same_answer(first[0].rstrip(","), gold))
        or (loose and loose[0] == whole)
        or text.lstrip().startswith(gold)
    )


def rearrange_gold(gold: str) -> list[Variant]:
    """Of a gold in words: its letters and its words in another order, and as many letters that are others."""
    words = gold.split()
    if not words or not all(word.isalpha() and word.isascii() and len(word) > 2 for word in words):
        return []
    others = "".join("q" if letter != " " else letter for letter in gold.casefold())
    made = [
        ("letters in another order", gold[::-1]),
        ("as long as the gold", others),
        ("words in another order", " ".join(words[::-1])),
    ]
    return [Variant(label, text) for label, text in made if not is_same_answer(text, gold)]
