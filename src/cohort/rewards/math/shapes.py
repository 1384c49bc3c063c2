r"""What kind of answer is it: a value, a tuple or interval, a set, a list of alternatives, a relation, a matrix, words?

`read(text)` gives the shape. Brackets, separators, relations, units and percent signs are understood here, by rules that
docs/math-rewards.md writes down with examples; only what is left, single expressions, is a matter of algebra. So no verdict
about order, openness or alternatives is ever left to a computer algebra system.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from cohort.rewards.math.text import COMMAND, LETTERS, NUMBER, SIGN, TEXT, Token, tokens_of
from cohort.rewards.math.tree import (
    FUNCTIONS,
    GREEK,
    MARKS,
    MAX_DEPTH,
    Node,
    Refused,
    Unreadable,
    check_size,
    number,
    read_expression,
)
from cohort.rewards.math.units import HEDGES, SCALES, is_doubtful, unit_of

MAX_ITEMS = 60


@dataclass(frozen=True)
class Value:
    """One expression, with the unit behind it. Without a node it was not understood: `refused` says whether to ask others."""

    text: str
    node: Node | None = None
    unit: str = ""
    refused: str = ""
    doubtful: bool = False
    """The unit is words that nobody can vouch for ("versus six"): they count only where the gold has them too."""


@dataclass(frozen=True)
class Words:
    """Text, case and spaces aside; or one letter that names a choice."""

    text: str
    label: bool = False


@dataclass(frozen=True)
class Group:
    r"""Several in brackets. kind: "()", "[]", "(]", "[)", "{}" for a set, "" for a bare list, ":" for a ratio, "cup" for a
    union, and for a matrix its size and sort ("2x2 matrix")."""

    kind: str
    items: tuple[Shape, ...]
    grouped: Shape | None = None
    """Of "100,200", which may also be one number: that number."""


@dataclass(frozen=True)
class Relation:
    """left (op) right (op) ...; parts are shapes."""

    parts: tuple[Shape, ...]
    ops: tuple[str, ...]


Shape = Value | Words | Group | Relation

RELATIONS = {
    (SIGN, "="): "=", (SIGN, "<"): "<", (SIGN, ">"): ">", (COMMAND, "le"): "<=", (COMMAND, "ge"): ">=", (COMMAND, "ne"): "!=",
    (COMMAND, "approx"): "~", (COMMAND, "in"): "in", (COMMAND, "equiv"): "mod=", (COMMAND, "to"): "to",
    (COMMAND, "implies"): "to", (COMMAND, "Rightarrow"): "to", (COMMAND, "rightarrow"): "to",
}  # fmt: skip
OPENING, CLOSING = {"(", "[", "{"}, {")", "]", "}"}
EVERY_NUMBER = Value(r"\mathbb{R}", Node("symbol", name=r"\mathbb R"))


def read(text: str) -> Shape:
    """The shape of an answer. Never raises: what cannot be understood is a Value that says so."""
    tokens = tokens_of(text)
    if tokens is None:
        return Value(text, refused="it is too long")
    tokens = trimmed(tokens)
    if not tokens:
        return Words("")
    try:
        return read_tokens(tokens, 0)
    except Refused as problem:
        return Value(text, refused=str(problem))


def trimmed(tokens: list[Token]) -> list[Token]:
    """Without Markdown's stars, closing punctuation and braces around everything."""
    while tokens and tokens[-1].kind == SIGN and tokens[-1].text in "*`.,;":
        tokens = tokens[:-1]
    while tokens and tokens[0].kind == SIGN and tokens[0].text in "*`":
        tokens = tokens[1:]
    while len(tokens) > 2 and tokens[0].kind == SIGN and tokens[0].text in "\"'" and is_sign(tokens[-1], tokens[0].text):
        tokens = tokens[1:-1]
    while len(tokens) > 2 and is_sign(tokens[0], "{") and closes_at(tokens, 0) == len(tokens) - 1:
        tokens = tokens[1:-1]
    return tokens


def read_tokens(tokens: list[Token], depth: int) -> Shape:
    if depth > MAX_DEPTH // 3:
        raise Refused("it is nested too deep")
    tokens = trimmed(tokens)
    if not tokens:
        raise Refused("a part of it is empty")
    for reader in READERS:
        shape = reader(tokens, depth)
        if shape is not None:
            return shape
    return read_value(tokens)


# ---------------------------------------------------------------------------------------------------------------------
# Tokens at the top level
# ---------------------------------------------------------------------------------------------------------------------


def is_sign(token: Token, text: str) -> bool:
    return token.kind == SIGN and token.text == text


def step(token: Token) -> int:
    """How much deeper a token leads."""
    if token.kind == SIGN:
        return (token.text in OPENING) - (token.text in CLOSING)
    if token.kind == COMMAND:
        return (token.text in ("{", "langle", "begin", "lfloor", "lceil")) - (
            token.text in ("}", "rangle", "end", "rfloor", "rceil")
        )
    return 0


def levels(tokens: Sequence[Token]) -> list[int]:
    """The depth of each token; brackets themselves are one deeper than what is around them."""
    found, level = [], 0
    for token in tokens:
        change = step(token)
        level += max(change, 0)
        found.append(level)
        level += min(change, 0)
    return found


def closes_at(tokens: Sequence[Token], start: int) -> int:
    """Where the bracket at `start` closes; -1 if nowhere."""
    level = 0
    for place in range(start, len(tokens)):
        level += step(tokens[place])
        if level == 0:
            return place
    return -1


def split_at(tokens: list[Token], places: Sequence[int]) -> list[list[Token]]:
    edges = [-1, *places, len(tokens)]
    return [tokens[start + 1 : end] for start, end in pairwise(edges)]


def as_text(tokens: Sequence[Token]) -> str:
    """The tokens as LaTeX again, for readers other than ours."""
    parts = []
    for token in tokens:
        gap = " " if token.spaced else ""
        if token.kind == COMMAND:
            parts.append(f"{gap}\\{token.text}" + (" " if token.text[-1:].isalpha() else ""))
        elif token.kind == TEXT:
            parts.append(f"{gap}\\text{{{token.text}}}")
        else:
            parts.append(gap + token.text)
    return "".join(parts).strip()


# ---------------------------------------------------------------------------------------------------------------------
# Lists and brackets
# ---------------------------------------------------------------------------------------------------------------------


def is_separator(token: Token) -> bool:
    if token.kind == SIGN:
        return token.text in ",;"
    if token.kind == COMMAND:
        return token.text == "pm_or"
    return token.kind in (TEXT, LETTERS) and token.text.strip(" ,").lower() in ("or", "and")


def items_of(tokens: list[Token]) -> list[list[Token]] | None:
    """The parts of a list; None if there is but one. "1, 2, and 3" has three: empty parts between separators are none."""
    deep = levels(tokens)
    places = [place for place, token in enumerate(tokens) if deep[place] == 0 and is_separator(token)]
    if not places:
        return None
    parts = [part for part in split_at(tokens, places) if part]
    if len(parts) > MAX_ITEMS:
        raise Refused("a list of very many items")
    return parts


def ungrouped(tokens: Sequence[Token]) -> list[Token]:
    """1,234 as two numbers and a comma."""
    result: list[Token] = []
    for token in tokens:
        if token.kind != NUMBER or "," not in token.text:
            result.append(token)
            continue
        for place, digits in enumerate(token.text.split(",")):
            result += [Token(SIGN, ",")] if place else []
            result.append(Token(NUMBER, digits, token.spaced and not place))
    return result


def read_list(tokens: list[Token], depth: int) -> Shape | None:
    parts = items_of(tokens)
    if parts is None:
        if len(tokens) == 1 and tokens[0].kind == NUMBER and "," in tokens[0].text and "." not in tokens[0].text:
            several = read_list(ungrouped(tokens), depth)
            return replace(several, grouped=read_value(tokens)) if isinstance(several, Group) else None
        return None
    if not parts:
        return None
    items = [read_item(part, depth) for part in parts]
    if len(items) == 1:
        return items[0]
    together = any(token.text.strip(" ,").lower() == "and" for token in tokens if token.kind in (TEXT, LETTERS))
    if not together and all(isinstance(item, Relation) and set(item.ops) <= set("<>") | {"<=", ">="} for item in items):
        return Group("cup", tuple(items))  # x < 1 or x > 2
    return Group("", tuple(with_common_name(items)))


def read_item(tokens: list[Token], depth: int) -> Shape:
    """A part of a list; 1,000 among others is a number."""
    shape = read_tokens(tokens, depth + 1)
    return shape.grouped if isinstance(shape, Group) and shape.grouped is not None else shape


def with_common_name(items: list[Shape]) -> list[Shape]:
    """n = 2, 3, 4 names all three: the values alone. x = 1, x = 2 likewise; x = 1, y = 2 stay relations."""
    names = [name_of(item) for item in items]
    first, others = names[0], set(names[1:])
    if (
        first is not None
        and others <= {None, first}
        and not any(isinstance(i, Relation) and n is None for i, n in zip(items, names, strict=True))
    ):
        return [item.parts[-1] if isinstance(item, Relation) else item for item in items]
    return items


def read_brackets(tokens: list[Token], depth: int) -> Shape | None:
    first, last = tokens[0], tokens[-1]
    if len(tokens) < 2 or closes_at(tokens, 0) != len(tokens) - 1:
        return None
    inside = tokens[1:-1]
    if first.kind == COMMAND and first.text == "{" and last.text == "}":
        return read_set(inside, depth)
    if first.kind == COMMAND and first.text == "langle":
        kind = "()"
    elif first.kind == SIGN and first.text in "([" and last.kind == SIGN:
        kind = first.text + last.text
    else:
        return None
    parts = bracketed_items(inside)
    if parts is None:
        return read_tokens(inside, depth + 1) if kind in ("()", "[]") and inside else None
    items = tuple(read_item(part, depth) for part in parts)
    if kind == "()" and len(items) == 2 and all(map(is_infinite, items)):
        return EVERY_NUMBER
    # Three or more in square brackets are no interval: an ordered list, as in parentheses.
    return Group("()" if kind == "[]" and len(items) > 2 else kind, items)


def bracketed_items(inside: list[Token]) -> list[list[Token]] | None:
    """In brackets a comma separates: (1,234) is a pair. Only where others have a space behind them, it groups digits."""
    deep = levels(inside)
    has_spaced = any(
        is_sign(token, ",") and not deep[place] and place + 1 < len(inside) and inside[place + 1].spaced
        for place, token in enumerate(inside)
    )
    return items_of(inside if has_spaced else ungrouped(inside))


def read_set(inside: list[Token], depth: int) -> Shape:
    if not inside:
        return Group("{}", ())
    deep = levels(inside)
    bars = [place for place, token in enumerate(inside) if not deep[place] and token.kind == SIGN and token.text in "|:"]
    if len(bars) == 1 and 0 < bars[0] < len(inside) - 1:  # {x | x > 2}: its condition
        return read_tokens(inside[bars[0] + 1 :], depth + 1)
    parts = bracketed_items(inside)
    items = [read_item(part, depth) for part in (parts or [inside])]
    return Group("{}", tuple(items))


def is_infinite(shape: Shape) -> bool:
    node = shape.node if isinstance(shape, Value) else None
    inner = node.args[0] if node is not None and node.op == "negate" else node
    return inner is not None and inner.op == "constant" and inner.name == "infty"


def read_union(tokens: list[Token], depth: int) -> Shape | None:
    deep = levels(tokens)
    places = [p for p, token in enumerate(tokens) if deep[p] == 0 and token.kind == COMMAND and token.text == "cup"]
    if not places:
        return None
    return Group("cup", tuple(read_tokens(part, depth + 1) for part in split_at(tokens, places) if part))


def read_ratio(tokens: list[Token], depth: int) -> Shape | None:
    deep = levels(tokens)
    places = [p for p, token in enumerate(tokens) if deep[p] == 0 and is_sign(token, ":")]
    parts = split_at(tokens, places)
    if not places or len(parts) > 5 or not all(parts):
        return None
    items = tuple(read_tokens(part, depth + 1) for part in parts)
    # "Total: 5" is no ratio.
    return Group(":", items) if all(isinstance(item, Value) and item.node is not None for item in items) else None


MATRICES = ("pmatrix", "bmatrix", "matrix", "smallmatrix", "Bmatrix", "array", "vmatrix", "cases")


def read_matrix(tokens: list[Token], depth: int) -> Shape | None:
    if not (tokens[0].kind == COMMAND and tokens[0].text == "begin" and closes_at(tokens, 0) >= 0):
        return None
    sort, start = braced_name(tokens, 1)
    end = closes_at(tokens, 0)
    if sort not in MATRICES or braced_name(tokens, end + 1) != (sort, len(tokens)):
        return None
    inside = tokens[start:end]
    if sort == "array" and inside and is_sign(inside[0], "{"):
        inside = inside[closes_at(inside, 0) + 1 :]
    deep = levels(inside)
    breaks = [p for p, token in enumerate(inside) if not deep[p] and token.kind == COMMAND and token.text == "\\"]
    rows = [row for row in split_at(inside, breaks) if row]
    cells = [
        split_at(row, [p for p, (t, d) in enumerate(zip(row, levels(row), strict=True)) if not d and is_sign(t, "&")])
        for row in rows
    ]
    widths = {len(row) for row in cells}
    if len(widths) != 1 or not all(cell for row in cells for cell in row) or len(rows) * max(widths) > MAX_ITEMS:
        raise Refused("a matrix that is ragged, has empty cells or is very large")
    kind = sort if sort in ("vmatrix", "cases") else "matrix"
    items = tuple(read_tokens(cell, depth + 1) for row in cells for cell in row)
    if kind == "cases" and max(widths) == 1:  # a system of equations
        return Group("", items)
    return Group(f"{len(rows)}x{max(widths)} {kind}", items)


def braced_name(tokens: Sequence[Token], place: int) -> tuple[str, int]:
    r"""The name behind \begin or \end, and the place after it."""
    inside = tokens[place : place + 3]
    if len(inside) == 3 and is_sign(inside[0], "{") and inside[1].kind == LETTERS and is_sign(inside[2], "}"):
        return inside[1].text, place + 3
    return "", place


# ---------------------------------------------------------------------------------------------------------------------
# Relations
# ---------------------------------------------------------------------------------------------------------------------


def read_relation(tokens: list[Token], depth: int) -> Shape | None:
    deep = levels(tokens)
    places = [p for p, token in enumerate(tokens) if deep[p] == 0 and (token.kind, token.text) in RELATIONS]
    if not places:
        return None
    parts, ops = split_at(tokens, places), [RELATIONS[tokens[p].kind, tokens[p].text] for p in places]
    if not parts[-1] or len(ops) > 10:
        return Value(as_text(tokens), refused="a relation without an end")
    if not parts[0] and ops[0] not in ("=", "~"):  # "> 5" says something else than 5
        return Words(as_text(tokens).replace(" ", ""))
    if not parts[0]:  # "= 5"
        parts, ops = parts[1:], ops[1:]
    if not all(parts):
        return Value(as_text(tokens), refused="a relation with a gap")
    shapes = [read_tokens(part, depth + 1) for part in parts]
    if not ops:
        return shapes[0]
    if ops == ["in"] and name_of_part(shapes[0]) is not None:
        return shapes[1]
    return Relation(tuple(shapes), tuple(ops))


def name_of_part(part: Shape) -> str | None:
    """The name that a part of a relation is: a symbol, f(x), words. None where it is an expression."""
    if isinstance(part, Words):
        return part.text
    if not isinstance(part, Value) or part.unit:
        return None
    if part.node is not None and part.node.op == "symbol":
        return part.node.name
    if CALL.fullmatch(part.text):
        return "".join(part.text.split())
    return None


CALL = re.compile(r"[A-Za-z]'{0,2}\s?\(\s?[A-Za-z](?:\s?,\s?[A-Za-z])?\s?\)")


def name_of(shape: Shape) -> str | None:
    """x of "x = 5" (and of "5 = x")."""
    if not isinstance(shape, Relation) or set(shape.ops) != {"="} or len(shape.ops) > 1:
        return None
    return name_of_part(shape.parts[0])


# ---------------------------------------------------------------------------------------------------------------------
# Words and labels
# ---------------------------------------------------------------------------------------------------------------------

MATH_WORDS = {*FUNCTIONS, "log", "lg", "sqrt", "pi"}


def read_choice(tokens: list[Token], depth: int) -> Shape | None:
    r"""(A), A), A:, \text{(A)}, \textbf{A}; also with what it stands for behind it, (A) 12. A bare A may be a variable."""
    length, letter = choice_at_start(tokens)
    if not length:
        return None
    rest = tokens[length:]
    if not rest:
        return Words(letter, label=True)
    # "(A) or (B)" and "(A) 12, (B) 13" are lists of alternatives; "(A) + 1" and "(A)(B)" are algebra.
    begins = (
        rest[0].spaced and rest[0].kind in (NUMBER, COMMAND, TEXT, LETTERS) and (rest[0].kind, rest[0].text) not in RELATIONS
    )
    denied = rest[0].text.split(" ")[0].lower() in DENIALS
    if letter not in CHOICES or not begins or denied or items_of(tokens) is not None or choice_at_start(rest)[0]:
        return None
    return Group("choice", (Words(letter, label=True), read_tokens(rest, depth + 1)))


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
    if len(texts) > 1 and is_letter(texts[0]) and texts[1] in (")", ":") and first.kind == LETTERS:
        return 2, texts[0]
    return 0, ""


CHOICES = "ABCDEFGHIJ"
DENIALS = frozenset(
    {
        "is",
        "isn't",
        "isn",
        "was",
        "are",
        "but",
        "if",
        "unless",
        "rather",
        "wait",
        "instead",
        "versus",
        "vs",
        "maybe",
        "perhaps",
        "or",
    }
)
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
    return Words(" ".join(" ".join(token.text for token in tokens).split()).casefold())


BASED = re.compile(r"\d+ _ (?:\d+|\{ \d+ \}|\{ \( \d+ \) \})")


def read_based(tokens: list[Token], depth: int) -> Shape | None:
    """1010_2, the digits of a number in another base: compared as they are, for a question about digits is not about values."""
    texts = [token.text for token in tokens]
    if not BASED.fullmatch(" ".join(texts)):
        return None
    return Words("".join(text for text in texts if text not in "{}()"))


CLOCK = re.compile(r"(\d{1,2}) ?: ?(\d\d) ?([ap]) ?m")


def read_clock(tokens: list[Token], depth: int) -> Shape | None:
    """9:30 PM, 9:30 p.m. A time without either is read as a ratio, which compares as well."""
    if len(tokens) > 12 or not any(token.kind in (TEXT, LETTERS) for token in tokens):
        return None
    found = CLOCK.fullmatch(" ".join(" ".join(spelled(tokens)).replace(".", " ").lower().split()))
    return Words(f"{int(found[1])}:{found[2]} {found[3]}m") if found else None


READERS = (
    read_choice, read_clock, read_list, read_relation, read_union, read_ratio, read_brackets, read_matrix, read_words, read_based,
)  # fmt: skip

THINGS = frozenset(
    {
        "angle",
        "triangle",
        "parallel",
        "perp",
        "cong",
        "equiv",
        "pmod",
        "bmod",
        "mod",
        "odot",
        "square",
        "widehat",
        "overrightarrow",
    }
)
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


# ---------------------------------------------------------------------------------------------------------------------
# Values
# ---------------------------------------------------------------------------------------------------------------------

CURRENCIES = {"$": "dollar", "€": "euro", "£": "pound sterling", "¥": "yen", "₹": "rupee"}


def read_value(tokens: list[Token]) -> Shape:
    r"""An expression with what may stand around it: a currency before, %, a unit or ^\circ behind; or both signs of \pm."""
    signs = [place for place, token in enumerate(tokens) if token.kind == COMMAND and token.text == "pm"]
    if len(signs) == 1:
        place = signs[0]
        head, tail = tokens[:place], tokens[place + 1 :]
        return Group("", tuple(read_value([*head, Token(SIGN, sign), *tail]) for sign in "+-"))
    text = as_text(tokens)
    body, unit, factor = without_unit(tokens)
    if not body:
        return Value(text)
    doubtful = bool(unit) and is_doubtful(unit)
    inner = as_text(body)
    if factor != 1:
        inner = rf"({inner})\cdot\frac{{{factor.numerator}}}{{{factor.denominator}}}"
    try:
        node = read_expression(body)
        check_size(node)
    except Unreadable as problem:
        return Value(inner, unit=unit, refused=unfit_for_others(body, str(problem)), doubtful=doubtful)
    except Refused as problem:
        return Value(text, refused=str(problem))
    return Value(inner, node if factor == 1 else Node("multiply", (node, number(factor))), unit, doubtful=doubtful)


MAX_OTHERS_TOKENS = 150
MAX_OTHERS_DIGITS = 6


def unfit_for_others(tokens: Sequence[Token], problem: str) -> str:
    """Why another reader is not asked, "" if it is: sentences are no mathematics, and towers of numbers are bombs."""
    if len(tokens) > MAX_OTHERS_TOKENS:
        return "it is long, and not understood: " + problem
    if any(
        token.kind == TEXT or (token.kind == LETTERS and len(token.text) > 2 and token.text not in MATH_WORDS)
        for token in tokens
    ):
        return "there are words in it: " + problem
    signs = [token.text for token in tokens if token.text not in ("{", "(")]
    if any(left.isdecimal() and signs[place + 1 : place + 4 : 2] == ["^", "^"] for place, left in enumerate(signs)):
        return "a tower of powers"
    if any(token.kind == NUMBER and len(token.text) > MAX_OTHERS_DIGITS for token in tokens):
        return "a long number in what is not understood: " + problem
    commands = {token.text for token in tokens if token.kind == COMMAND}
    # What hides or strikes out (\phantom, \cancel) is dropped by some readers: only mathematics is handed on.
    return "" if commands and commands <= FOR_OTHERS else problem


FOR_OTHERS = frozenset({
    "sum", "prod", "int", "iint", "iiint", "oint", "lim", "to", "rightarrow", "infty", "frac", "over", "sqrt", "binom", "choose", "partial",
    "cdot", "times", "div", "pi", "log", "lg", "max", "min", "sup", "inf", "det", "lfloor", "rfloor", "lceil", "rceil", "circ", "prime",
    "arccot", "coth", *FUNCTIONS, *GREEK, *MARKS,
})  # fmt: skip


def without_unit(tokens: list[Token]) -> tuple[list[Token], str, Fraction]:
    """(the tokens of the number, the unit, what a percent sign or "million" multiplies it with)."""
    body, unit, factor = list(tokens), "", Fraction(1)
    sign = body[:1] if is_sign(body[0], "-") else []
    rest = body[len(sign) :]
    if rest and rest[0].kind in (COMMAND, SIGN) and rest[0].text in CURRENCIES:
        unit, body = CURRENCIES[rest[0].text], [*sign, *rest[1:]]
    if len(body) > 1 and is_sign(body[-1], "%"):
        return body[:-1], unit, Fraction(1, 100)
    if len(body) > 2 and body[-1].text == "circ" and is_sign(body[-2], "^"):
        return unless_degrees_inside(body, body[:-2])
    if len(body) > 4 and [token.text for token in body[-4:]] == ["^", "{", "circ", "}"]:
        return unless_degrees_inside(body, body[:-4])
    end = unit_start(body)
    if end is None:
        return body, unit, factor
    name = " ".join(spelled(body[end:]))
    head = name.split(" ")[0]
    if name == "per cent":
        return body[:end], unit, Fraction(1, 100)
    if head in ("percent", "percentage", "pct"):
        return (body[:end], unit, Fraction(1, 100)) if " " not in name else (body, unit, factor)
    if head in SCALES:
        factor, name = Fraction(SCALES[head]), name.partition(" ")[2]
    found = unit_of(name) if name else ""
    if found is None or (unit and found not in ("", unit)):
        return list(tokens), "", Fraction(1)
    if found in ("celsius", "fahrenheit") and [token.text for token in body[:end][-2:]] == ["^", "circ"]:
        return body[: end - 2], f"degree {found}", factor
    return body[:end], unit or found, factor


def unless_degrees_inside(tokens: list[Token], body: list[Token]) -> tuple[list[Token], str, Fraction]:
    r"""90^\circ is 90 degrees; \sin 30^\circ and 30^\circ + 45^\circ have no unit."""
    if len([token for token in body if token.text == "circ" or token.text in FUNCTIONS]):
        return tokens, "", Fraction(1)
    return body, "degree", Fraction(1)


MAX_UNIT_TOKENS = 12
COMPOUND = frozenset({"m", "km", "cm", "mi", "ft", "g", "kg", "mg", "L", "mL", "s", "h", "hr", "min", "sec"})


def unit_start(body: list[Token]) -> int | None:
    r"""Where words behind a number begin: \text{...}, or bare words that are no variables; exponents of units included."""
    if len(body) > 3 and is_sign(body[-2], "/") and body[-4].kind == NUMBER and body[-3].spaced:  # 20 m/s
        above, below = body[-3].text, body[-1].text
        if {above, below} <= COMPOUND and body[-3].kind == body[-1].kind == LETTERS:
            return len(body) - 3
    start = None
    place = len(body) - 1
    while place > 0:
        if len(body) - place > MAX_UNIT_TOKENS:
            return None
        token = body[place]
        if is_word(token):
            start = place
        elif not (start is not None and is_sign(token, "/")) and not is_unit_power(body, place):
            break
        place -= 1
    if start is None:
        return None
    before = body[start - 1]
    # A bare word behind letters or a sign is part of an expression; behind a number or a bracket it is a unit.
    return start if before.kind == NUMBER or before.text in (")", "}", "pi") or body[start].kind == TEXT else None


def is_word(token: Token) -> bool:
    if token.kind == TEXT:
        return True
    return (
        token.kind == LETTERS
        and token.text not in MATH_WORDS
        and ((token.spaced and len(token.text) > 2) or unit_of(token.text, known=True) is not None)
    )


def is_unit_power(body: list[Token], place: int) -> bool:
    """Whether the token belongs to the exponent of a unit at the end: cm^2, cm^{2}."""
    for length in (2, 4):
        start = len(body) - length
        piece = [token.text for token in body[start:]] if 0 < start <= place else []
        if piece in (["^", "2"], ["^", "3"], ["^", "{", "2", "}"], ["^", "{", "3", "}"]) and is_word(body[start - 1]):
            return True
    return False


def spelled(tokens: Sequence[Token]) -> list[str]:
    return [token.text for token in tokens if token.text not in ("{", "}") and token.text]
