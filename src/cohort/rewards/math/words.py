r"""Answers that are text: words, the letter of a choice, the digits of another base, and text with numbers (June 20)."""

from __future__ import annotations

import re
from dataclasses import replace

from cohort.rewards.math.kinds import EVERY_NUMBER, Group, Shape, Words
from cohort.rewards.math.levels import as_text, is_sign, spelled
from cohort.rewards.math.quantities import MATH_WORDS
from cohort.rewards.math.text import COMMAND, LETTERS, NUMBER, SIGN, TEXT, Token, tokens_of
from cohort.rewards.math.units import HEDGES


def choice_at_start(tokens: list[Token]) -> tuple[int, str]:
    """(how many tokens name a choice, its letter)."""
    first = tokens[0]
    if first.text.lower() in ("option", "choice") and len(tokens) > 1:  # option B
        length, letter = choice_at_start(tokens[1:])
        if not length and tokens[1].kind in (LETTERS, TEXT) and tokens[1].text in CHOICES:
            length, letter = 1, tokens[1].text
        return (1 + length, letter) if length else (0, "")
    if first.kind == TEXT and first.text.lower().startswith(("option ", "choice ")):
        return choice_at_start([replace(first, text=first.text[7:]), *tokens[1:]])
    if first.kind == TEXT:
        inner = first.text.strip(" .:")
        found = inner[1:-1] if inner[:1] == "(" and inner[-1:] == ")" else inner.removesuffix(")")
        return (1, found) if is_letter(found) and (found != inner or len(tokens) == 1) else (0, "")
    texts = [token.text for token in tokens[:3]]
    if len(texts) == 3 and texts[0] == "(" and texts[2] == ")" and is_letter(texts[1]) and tokens[1].kind in (LETTERS, TEXT):
        return 3, texts[1]
    if len(texts) > 1 and is_letter(texts[0]) and texts[1] in (")", ":", ".") and first.kind == LETTERS:
        return 2, texts[0]
    return 0, ""


CHOICES = "ABCDEFGHIJ"
DENIALS = frozenset({
    "is", "isn't", "isn", "was", "are", "but", "if", "unless", "rather", "wait", "instead", "versus", "vs", "maybe", "perhaps", "or",
})  # fmt: skip
"""Behind a letter these speak about the choice; what it stands for begins otherwise, also with "none" or "not"."""


def is_letter(text: str) -> bool:
    return len(text) == 1 and text.isascii() and text.isalpha()


def read_words(tokens: list[Token], depth: int) -> Shape | None:
    """An answer of letters only. A word is not a product of its letters; two bare letters are one (xy)."""
    kinds = {token.kind for token in tokens}
    if kinds == {COMMAND} and tokens[0].text == "emptyset" and len(tokens) == 1:
        return Group("{}", ())
    if not kinds <= {TEXT, LETTERS} and not all(
        is_sign(t, "-") or is_sign(t, "'") for t in tokens if t.kind not in (TEXT, LETTERS)
    ):
        return None
    if TEXT not in kinds:
        letters = [token.text.lower() for token in tokens if token.kind == LETTERS]
        if any(word in MATH_WORDS for word in letters) or (all(len(word) < 3 for word in letters) and letters != ["no"]):
            return None
        if SIGN in kinds and any(len(word) < 3 for word in letters):
            return None
    elif any(character.isdecimal() for token in tokens for character in token.text):
        return None
    text = " ".join(" ".join(token.text for token in tokens).split()).casefold()
    return SAME_WORDS.get(text) or Words(ARTICLE.sub("", text))


SAME_WORDS: dict[str, Shape] = {
    **dict.fromkeys(("no solution", "no solutions", "the empty set", "empty set"), Group("{}", ())),
    **dict.fromkeys(("all real numbers", "all reals", "all real", "every real number"), EVERY_NUMBER),
    **dict.fromkeys(("does not exist", "dne"), Words("does not exist")),
}
ARTICLE = re.compile(r"^(?:an?|the) (?=[^\W\d_]{3})")


BASES = {
    "two": "2",
    "three": "3",
    "four": "4",
    "five": "5",
    "six": "6",
    "seven": "7",
    "eight": "8",
    "nine": "9",
    "ten": "10",
    "twelve": "12",
    "sixteen": "16",
}
BASED = re.compile(rf"(\()?((?=[A-Fa-f]*\d)[0-9A-Fa-f]+)(?(1)\))(?:_\(?(?:base ?)?|base)(\d\d?|{'|'.join(BASES)})\)?")


def read_based(tokens: list[Token], depth: int) -> Shape | None:
    """1010_2, the digits of a number in another base: compared as they are, for a question about digits is not about values."""
    found = BASED.fullmatch("".join(spelled(tokens)))
    if found is None:
        return None
    digits, base = found[2].upper(), BASES.get(found[3], found[3])
    if not digits.isdecimal() and not 10 < int(base) <= 16:  # 2a_1 is a product
        return None
    return Words(f"{digits}_{base}")


def read_dots(tokens: list[Token], depth: int) -> Shape | None:
    """The dots of {1, 2, 3, ...}, and of 0.333...: no value, so equal to the same text only."""
    if not (tokens[-1].kind == COMMAND and tokens[-1].text == "ldots"):
        return None
    if len(tokens) > 1 and not (len(tokens) < 4 and all(token.kind == NUMBER or is_sign(token, "-") for token in tokens[:-1])):
        return None
    return Words(as_text(tokens).replace(" ", ""))


THINGS = frozenset({
    "angle", "triangle", "parallel", "perp", "cong", "equiv", "pmod", "bmod", "mod", "odot", "square", "widehat", "overrightarrow",
})  # fmt: skip
"""Commands that name something: an answer with them is compared as it is written."""
WORD_SIGNS = frozenset(".,;:-'\"()/&{}^=+%")
WORDS_AND_DIGITS = re.compile(r"\.?\d+(?:[.,]\d+)*|[^\W\d_]+|[^\s.]")


def plain_words(text: str) -> str:
    r"""\text{June 20}, 8 hours 30 minutes, \angle ABC in one spelling; "" for what is no plain text, or a condition or hedge.

    Letter for letter: case (except of names with a command), spaces, dots and the ways of setting text do not matter.
    """
    tokens = tokens_of(text) if len(text) <= MAX_WORDS_CHARS else None
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


MAX_WORDS_CHARS = 200
