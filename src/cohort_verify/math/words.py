r"""Reads answers that are text: words, the letter of a choice, digits of another base, times, dates, text with numbers (June
20).

Two times are equal only as times, never in proportion as ratios are. 9:30 may be a ratio and is read as one; the other side
decides. If only one side says am or pm, hours of 0 and 13 to 24 also tell (14:30 is 2:30 pm). A reference answer without am or
pm accepts both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from cohort_verify.math.kinds import EVERY_NUMBER, Group, Reading, Value, Words
from cohort_verify.math.quantities import HEDGES, MATH_WORDS
from cohort_verify.math.text import COMMAND, LETTERS, NUMBER, SIGN, TEXT, Token, list_texts, read_tokens, write_latex
from cohort_verify.math.tree import number

MAX_CLOCK_TOKENS = 16
MAX_WORDS_CHARS = 200

# ---------------------------------------------------------------------------------------------------------------------
# Choices and words
# ---------------------------------------------------------------------------------------------------------------------

CHOICES = "ABCDEFGHIJ"
DENIALS = frozenset({
    "is", "isn't", "isn", "was", "are", "but", "if", "unless", "rather", "wait", "instead", "versus", "vs", "maybe", "perhaps", "or",
})  # fmt: skip
"""Words behind a letter that comment on the choice. The meaning of a choice begins with other words, also "none" or "not"."""
SAME_WORDS: dict[str, Reading] = {
    **dict.fromkeys(("no solution", "no solutions", "the empty set", "empty set"), Group("{}", ())),
    **dict.fromkeys(("all real numbers", "all reals", "all real", "every real number"), EVERY_NUMBER),
    **dict.fromkeys(("does not exist", "dne"), Words("does not exist")),
}
ARTICLE = re.compile(r"^(?:an?|the) (?=[^\W\d_]{3})")
BASES = {
    word: str(base) for base, word in enumerate(("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"), 2)
}
BASES |= {"twelve": "12", "sixteen": "16"}
BASED = re.compile(rf"(\()?((?=[A-Fa-f]*\d)[0-9A-Fa-f]+)(?(1)\))(?:_\(?(?:base ?)?|base)(\d\d?|{'|'.join(BASES)})\)?")
THINGS = frozenset({
    "angle", "triangle", "parallel", "perp", "cong", "equiv", "pmod", "bmod", "mod", "odot", "square", "widehat", "overrightarrow",
})  # fmt: skip
"""Commands that name something. Such answers are compared as written."""
WORD_SIGNS = frozenset(".,;:-'\"()/&{}^=+%")
WORDS_AND_DIGITS = re.compile(r"\.?\d+(?:[.,]\d+)*|[^\W\d_]+|[^\s.]")


def find_choice(tokens: list[Token]) -> tuple[int, str]:
    """Return (number of tokens that name a choice, its letter)."""
    first, texts = tokens[0], [token.text for token in tokens[:3]]
    if first.text.lower() in ("option", "choice") and len(tokens) > 1:  # option B
        length, letter = find_choice(tokens[1:])
        if not length and tokens[1].word and texts[1] in CHOICES:
            length, letter = 1, texts[1]
        return (1 + length, letter) if length else (0, "")
    if first.kind == TEXT and first.word.startswith(("option ", "choice ")):
        return find_choice([replace(first, text=first.text[7:]), *tokens[1:]])
    if first.kind == TEXT:
        inner = first.text.strip(" .:")
        found = inner[1:-1] if inner[:1] == "(" and inner[-1:] == ")" else inner.removesuffix(")")
        return (1, found) if is_letter(found) and (found != inner or len(tokens) == 1) else (0, "")
    if len(texts) == 3 and texts[0] == "(" and texts[2] == ")" and is_letter(texts[1]) and tokens[1].word:
        return 3, texts[1]
    if len(texts) > 1 and is_letter(texts[0]) and texts[1] in (")", ":", ".") and first.kind == LETTERS:
        return 2, texts[0]
    return 0, ""


def is_letter(text: str) -> bool:
    return len(text) == 1 and text.isascii() and text.isalpha()


def read_words(tokens: list[Token], depth: int) -> Reading | None:
    """Read an answer of letters only. A word is not a product of its letters, but two bare letters are (xy)."""
    if [token.latex for token in tokens] == [r"\emptyset"]:
        return Group("{}", ())
    others = [token.latex for token in tokens if not token.word]
    if not set(others) <= {"-", "'"}:
        return None
    if all(token.kind != TEXT for token in tokens):
        words = [token.word for token in tokens if token.word]
        has_short = any(len(word) < 3 for word in words)
        are_short = all(len(word) < 3 for word in words)
        if not MATH_WORDS.isdisjoint(words) or (are_short and words != ["no"]) or (others and has_short):
            return None
    elif any(character.isdecimal() for token in tokens for character in token.text):
        return None
    text = " ".join(" ".join(token.text for token in tokens).split()).casefold()
    return SAME_WORDS.get(text) or Words(ARTICLE.sub("", text))


def read_based(tokens: list[Token], depth: int) -> Reading | None:
    """Read the digits of a number in another base, 1010_2. They are compared as written, because such a question is about
    digits.
    """
    found = BASED.fullmatch("".join(list_texts(tokens)))
    if found is None:
        return None
    digits, base = found[2].upper(), BASES.get(found[3], found[3])
    if not digits.isdecimal() and not 10 < int(base) <= 16:  # 2a_1 is a product
        return None
    return Words(f"{digits}_{base}")


def read_dots(tokens: list[Token], depth: int) -> Reading | None:
    """Read the dots of {1, 2, 3, ...} and 0.333... They have no value and equal only the same text."""
    *before, last = tokens
    if last.latex != r"\ldots" or len(before) > 2 or not all(token.kind == NUMBER or token.latex == "-" for token in before):
        return None
    return Words(write_latex(tokens).replace(" ", ""))


def read_plain_words(text: str) -> str:
    r"""Return \text{June 20}, 8 hours 30 minutes or \angle ABC in one spelling; "" if it is not plain text, or is conditional.

    The words must be the same. Case (except in names with a command), spaces, dots and text commands are ignored.
    """
    tokens = read_tokens(text) if len(text) <= MAX_WORDS_CHARS else None
    if not tokens:
        return ""
    commands = {token.text for token in tokens if token.kind == COMMAND and token.text != "$"}
    signs = {token.text for token in tokens if token.kind == SIGN}
    pieces = [piece for token in tokens for piece in WORDS_AND_DIGITS.findall(token.text)]
    worded = commands or any(len(piece) > 1 and piece.isalpha() for piece in pieces)
    if not worded or not commands <= THINGS or not signs <= WORD_SIGNS or any(piece.lower() in HEDGES for piece in pieces):
        return ""
    plain = " ".join(piece for piece in pieces if piece not in "{},")
    return plain if commands else plain.casefold()


# ---------------------------------------------------------------------------------------------------------------------
# Times and dates
# ---------------------------------------------------------------------------------------------------------------------

CLOCK = re.compile(
    r"(\d{1,2})(?: ?: ?(\d\d)(?: ?: ?(\d\d))?)? ?"
    r"(?:([ap]) ?m|(noon|midnight)|o ?' ?clock(?: ([ap]) ?m)?|in the (?:(morning)|afternoon|evening))"
)
NAMED_TIMES = {"noon": "12:00:00 pm", "midnight": "12:00:00 am"}
SPELLED_TIME = re.compile(r"(\d+):(\d\d):(\d\d) ([ap]m)")
HOUR, SIXTIETH = re.compile(r"\d|[01]\d|2[0-4]"), re.compile(r"[0-5]\d")
DATE = re.compile(r"(?:([12]\d{3})([-/.])(\d\d?)\2(\d\d?)|(\d\d?)([-/.])(\d\d?)\6([12]\d{3}))")


@dataclass(frozen=True)
class Time:
    hour: int
    rest: tuple[int, ...]
    """Minutes, and seconds if given."""
    half: str = ""
    """am, pm, or "" if not given."""

    @property
    def day_hour(self) -> int | None:
        """The hour from 0 to 24; None if it could be am or pm."""
        if self.half:
            return self.hour % 12 + 12 * (self.half == "pm")
        return self.hour if self.hour == 0 or self.hour > 12 else None


def read_clock(tokens: list[Token], depth: int) -> Reading | None:
    """Return 9:30 PM, 9 p.m., 12 noon and 9:30 in the morning in one spelling; 5 o'clock as 5:00."""
    if len(tokens) > MAX_CLOCK_TOKENS or not any(token.word for token in tokens):
        return None
    text = " ".join(" ".join(list_texts(tokens)).replace(".", " ").lower().split())
    if text in NAMED_TIMES:
        return Words(NAMED_TIMES[text])
    found = CLOCK.fullmatch(text)
    if found is None:
        return None
    hour, minutes, seconds, letter, named, later_letter, morning = found.groups()
    if int(hour) > 12 or not all(SIXTIETH.fullmatch(part) for part in (minutes, seconds) if part):
        return None
    time = f"{int(hour)}:{minutes or '00'}:{seconds or '00'}"
    if named:
        return Words(NAMED_TIMES[named]) if time == "12:00:00" else None
    letter = letter or later_letter or ("a" if morning else "")
    if not letter and "clock" in text:
        return Group(":", tuple(Value(part, number(int(part))) for part in (hour, "00")))
    return Words(f"{time} {letter or 'p'}m")


def read_date(tokens: list[Token], depth: int) -> Reading | None:
    """Read 2024-01-02, 1/2/2024, 1.2.2024. Dates are compared number by number, not as quotients or differences."""
    found = DATE.fullmatch("".join(token.text for token in tokens)) if len(tokens) < 6 else None
    if found is None or any(token.spaced for token in tokens[1:]):
        return None
    parts = [int(part) for part in found.groups() if part and part.isdecimal()]
    days = [part for part in parts if part < 1000]
    return Words("/".join(map(str, parts))) if 0 < min(days) <= 12 and max(days) <= 31 else None


def find_time(reading: Reading) -> Time | None:
    """Return the time of an answer: h:mm or h:mm:ss with two digits below 60, or the spelling of `read_clock`."""
    if isinstance(reading, Words):
        found = SPELLED_TIME.fullmatch(reading.text)
        return Time(int(found[1]), (int(found[2]), int(found[3])), found[4]) if found else None
    if not isinstance(reading, Group) or reading.kind != ":" or len(reading.items) not in (2, 3):
        return None
    hour, *rest = (
        item.text if isinstance(item, Value) and not item.unit and item.factor == 1 else "" for item in reading.items
    )
    return Time(int(hour), tuple(map(int, rest))) if HOUR.fullmatch(hour) and all(map(SIXTIETH.fullmatch, rest)) else None


def is_same_time(found: Time, gold: Time) -> bool:
    if not found.half and not gold.half:
        return found == gold
    # With am or pm the first number is the hour, so seconds may be missing.
    if (*found.rest, 0)[:2] != (*gold.rest, 0)[:2]:
        return False
    if gold.day_hour is None:  # the reference answer does not say am or pm
        return found.hour == gold.hour
    return found.day_hour is not None and found.day_hour % 24 == gold.day_hour % 24
