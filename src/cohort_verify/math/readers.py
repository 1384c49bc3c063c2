r"""Finds out the kind of an answer: a value, a tuple or interval, a set, a list of alternatives, a relation, a matrix, or
words.

`read_answer(text)` tries readers with one signature in turn; the first one that recognises the tokens decides. Brackets,
separators, relations, units and percent signs are handled here; docs/math-rewards.md has the rules with examples. Only single
expressions are left to algebra, so no verdict about order, open ends or alternatives depends on a computer algebra system.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from cohort_verify.math.expressions import MAX_DEPTH
from cohort_verify.math.intervals import intersect, is_condition, join_conditions, remove_points
from cohort_verify.math.kinds import EVERY_NUMBER, Group, Reading, Relation, Value, Words, find_equation_name, find_name
from cohort_verify.math.quantities import read_value
from cohort_verify.math.text import (
    COMMAND,
    LETTERS,
    NUMBER,
    RELATIONS,
    SIGN,
    TEXT,
    Token,
    find_closing,
    find_top,
    list_texts,
    read_tokens,
    split_at,
    split_by,
    split_thousands,
    write_latex,
)
from cohort_verify.math.tree import OutOfBounds, number
from cohort_verify.math.words import CHOICES, DENIALS, find_choice, read_based, read_clock, read_date, read_dots, read_words

MAX_ITEMS = 60
KEPT_READINGS = 4096
PLAIN_DIGITS = 18
MATRICES = ("pmatrix", "bmatrix", "matrix", "smallmatrix", "Bmatrix", "array", "vmatrix", "cases", "dcases", "rcases")
ALIGNED = frozenset({
    "aligned", "align", "alignedat", "alignat", "flalign", "split", "gathered", "gather", "equation", "eqnarray", "multline",
})  # fmt: skip
TOGETHER = Token(TEXT, "and")
Rows = list[list[list[Token]]]
"""Rows of cells of tokens."""
ROUNDED = frozenset({
    "approximately", "approx", "about", "around", "roughly", "circa", "exactly", "precisely", "equal to", "equals", "answer", "final answer",
    "the answer is", "the final answer is", "answer is", "is",
})  # fmt: skip
"""Words before a number that mean no more than the sign: about 5 is \\approx 5."""


@functools.lru_cache(maxsize=KEPT_READINGS)
def read_answer(text: str) -> Reading:
    """Return the reading of an answer. Never raises: an answer that cannot be read is a Value with the reason.

    Cached: an answer is read for the score and for the majority vote, and a group has few different answers.
    """
    if len(text) <= PLAIN_DIGITS and text.isascii() and text.isdigit():  # same result as the readers below
        return Value(text, number(Fraction(int(text))))
    return read_parts(text)


def read_parts(text: str) -> Reading:
    """Read with the readers, without the shortcut and the cache."""
    tokens = read_tokens(text)
    if tokens is None:
        return Value(text, refused="it is too long")
    tokens = trim_tokens(tokens)
    try:
        return read_part(tokens, 0) if tokens else Words("")
    except OutOfBounds as problem:
        return Value(text, refused=str(problem))


def read_part(tokens: list[Token], depth: int) -> Reading:
    if depth > MAX_DEPTH // 3:
        raise OutOfBounds("it is nested too deep")
    tokens = trim_tokens(tokens)
    if not tokens:
        raise OutOfBounds("a part of it is empty")
    readings = (reader(tokens, depth) for reader in READERS)
    return next((reading for reading in readings if reading is not None), None) or read_value(tokens)


def trim_tokens(tokens: list[Token]) -> list[Token]:
    """Remove Markdown asterisks, closing punctuation and outer braces."""
    while tokens and tokens[-1].latex in ("*", "`", ".", ",", ";"):
        tokens = tokens[:-1]
    while tokens and tokens[0].latex in ("*", "`"):
        tokens = tokens[1:]
    while len(tokens) > 2 and tokens[0].latex in ('"', "'") and tokens[-1].latex == tokens[0].latex:
        tokens = tokens[1:-1]
    while len(tokens) > 2 and tokens[0].latex == "{" and find_closing(tokens, 0) == len(tokens) - 1:
        tokens = tokens[1:-1]
    while len(tokens) > 1 and tokens[0].word.strip(" .:") in ROUNDED:
        tokens = tokens[2:] if len(tokens) > 2 and tokens[1].text in (".", ":") else tokens[1:]
    while len(tokens) > 1 and tokens[-1].word.strip(" .") in ("approximately", "approx"):
        tokens = tokens[:-1]
    return tokens


# ---------------------------------------------------------------------------------------------------------------------
# Lists and brackets
# ---------------------------------------------------------------------------------------------------------------------


def is_separator(token: Token) -> bool:
    return token.latex in (",", ";") or token.word.strip(" ,") in ("or", "and")


def split_items(tokens: list[Token]) -> list[list[Token]] | None:
    """Return the parts of a list, or None if there is only one. "1, 2, and 3" has three; empty parts are dropped."""
    places = find_top(tokens, is_separator)
    parts = [part for part in split_at(tokens, places) if part]
    if len(parts) > MAX_ITEMS:
        raise OutOfBounds("the list is too long")
    return parts if places else None


def read_list(tokens: list[Token], depth: int) -> Reading | None:
    parts = split_items(tokens)
    if parts is None and len(tokens) == 1 and tokens[0].kind == NUMBER and "," in tokens[0].text and "." not in tokens[0].text:
        several = read_list(split_thousands(tokens), depth)
        return replace(several, grouped=read_value(tokens)) if isinstance(several, Group) else None
    if not parts:
        return None
    if (several := read_systems(tokens, depth)) is not None:
        return several
    items = [read_item(part, depth) for part in parts]
    words = {token.word.strip(" ,") for token in tokens}
    if len(items) == 1:
        return None if words & {"and", "or"} else items[0]  # "5 or" is cut off
    if all(map(is_condition, items)):
        return join_conditions(items, words)
    items = spread_signs(drop_common_name(items))
    apart = all(isinstance(item, Words) and not item.label for item in items) or (
        len(set(map(find_equation_name, items)) - {None}) > 1
    )
    return Group("or" if apart and "or" in words else "", tuple(items))  # Alice or Bob, x = 1 or y = 2: one of them


def read_systems(tokens: list[Token], depth: int) -> Reading | None:
    """Read several solutions with several names each: p=5, q=2; p=7, q=2."""
    places = find_top(tokens, lambda token: token.latex == ";" or token.word.strip(" ,") == "or")
    parts = [part for part in split_at(tokens, places) if part]
    named = [[find_leading_name(item) for item in split_items(part) or []] for part in parts]
    if len(parts) < 2 or len(named[0]) < 2 or not all(named[0]) or any(names != named[0] for names in named):
        return None
    return Group("", tuple(read_part(part, depth + 1) for part in parts))


def find_leading_name(tokens: Sequence[Token]) -> str:
    """Return x of x = 5, "" for anything else."""
    return tokens[0].text if len(tokens) > 2 and tokens[0].kind == LETTERS and tokens[1].latex == "=" else ""


def read_item(tokens: list[Token], depth: int) -> Reading:
    """Read an item of a list; 1,000 is one number here."""
    reading = read_part(tokens, depth + 1)
    return reading.grouped if isinstance(reading, Group) and reading.grouped is not None else reading


def spread_signs(items: Sequence[Reading]) -> list[Reading]:
    r"""Replace \pm 2 in a list by 2 and -2."""
    return [part for item in items for part in (item.items if isinstance(item, Group) and item.kind == "" else (item,))]


def drop_common_name(items: list[Reading]) -> list[Reading]:
    """Drop a name common to all: n = 2, 3, 4 and x = 1, x = 2 give the values. x = 1, y = 2 stay relations."""
    names = {find_equation_name(item) for item in items if isinstance(item, Relation)}
    if find_equation_name(items[0]) is None or len(names) > 1:
        return items
    return [item.parts[-1] if isinstance(item, Relation) else item for item in items]


def read_brackets(tokens: list[Token], depth: int) -> Reading | None:
    if len(tokens) < 2 or find_closing(tokens, 0) != len(tokens) - 1:
        return None
    first, *inside, last = tokens
    if first.latex == r"\{" and last.text == "}":
        return read_set(inside, depth)
    kind = "()" if first.latex == r"\langle" else first.latex + last.latex
    if kind[0] not in "([" or (last.kind != SIGN and first.kind != COMMAND):
        return None
    parts = split_bracketed(inside)
    if parts is None:
        return read_part(inside, depth + 1) if kind in ("()", "[]") and inside else None
    items = tuple(read_item(part, depth) for part in parts)
    if kind == "()" and len(items) == 2 and all(map(is_infinite, items)):
        return EVERY_NUMBER
    # Three or more items in square brackets are not an interval but an ordered list, as in parentheses.
    return Group("()" if kind == "[]" and len(items) > 2 else kind, items)


def split_bracketed(inside: list[Token]) -> list[list[Token]] | None:
    """Split at commas: (1,234) is a pair. A comma groups digits only if other commas are followed by a space."""
    commas = find_top(inside, lambda token: token.latex == ",")
    has_spaced = any(token.spaced for place in commas for token in inside[place + 1 : place + 2])
    return split_items(inside if has_spaced else split_thousands(inside))


def read_set(inside: list[Token], depth: int) -> Reading:
    if not inside:
        return Group("{}", ())
    bars = find_top(inside, lambda token: token.latex in ("|", ":"))
    if len(bars) == 1 and 0 < bars[0] < len(inside) - 1 and inside[bars[0] - 1].kind != NUMBER:  # {x | x > 2} is its condition
        if inside[0].kind == LETTERS and list_texts(inside[1 : bars[0]]) in ([], ["in", "mathbb", "R"]):
            return read_part(inside[bars[0] + 1 :], depth + 1)
        inside[bars[0]] = Token(SIGN, ":")
        return Words(" ".join(list_texts(inside)))  # {2x | x > 2}, or whole numbers x: another set
    return Group("{}", tuple(spread_signs([read_item(part, depth) for part in split_bracketed(inside) or [inside]])))


def is_infinite(reading: Reading) -> bool:
    node = reading.node if isinstance(reading, Value) else None
    inner = node.args[0] if node is not None and node.op == "negate" else node
    return inner is not None and inner.op == "constant" and inner.name == "infty"


def read_union(tokens: list[Token], depth: int) -> Reading | None:
    r"""Read A \\cup B, A \\cap B of two intervals, and the real numbers or an interval without some points."""
    signs = {tokens[place].latex for place in find_top(tokens, lambda token: token.latex in (r"\cup", r"\cap", r"\setminus"))}
    if not signs:
        return None
    sign = r"\cup" if r"\cup" in signs else min(signs)
    pieces = split_by(tokens, sign)
    parts = [read_part(piece, depth + 1) for piece in pieces if piece]
    if sign == r"\cup":
        return Group("cup", tuple(parts))
    if len(parts) < len(pieces):
        return None
    points = parts[-1]
    if sign == r"\setminus" and len(parts) == 2 and isinstance(points, Group) and points.kind == "{}":
        return remove_points(parts[0], points.items)
    return intersect(parts) if sign == r"\cap" else None


def read_ratio(tokens: list[Token], depth: int) -> Reading | None:
    parts = split_by(tokens, ":")
    if not 2 <= len(parts) <= 5 or not all(parts):
        return None
    items = tuple(read_item(part, depth) for part in parts)
    # "Total: 5" is not a ratio.
    return Group(":", items) if all(isinstance(item, Value) and item.node is not None for item in items) else None


# ---------------------------------------------------------------------------------------------------------------------
# Environments: matrices, systems of equations, aligned equations
# ---------------------------------------------------------------------------------------------------------------------


def read_environment(tokens: list[Token], depth: int) -> Reading | None:
    sort, rows = split_environment(tokens)
    if not sort:
        return None
    if (line := join_lines(sort, rows)) is not None:
        return read_part(line, depth + 1)
    widths, cells = {len(row) for row in rows}, [cell for row in rows for cell in row]
    if len(widths) != 1 or not all(cells) or len(cells) > MAX_ITEMS:
        raise OutOfBounds("the matrix is ragged, has empty cells or is too large")
    kind = sort if sort in ("vmatrix", "cases") else "matrix"
    return Group(f"{len(rows)}x{max(widths)} {kind}", tuple(read_part(cell, depth + 1) for cell in cells))


def split_environment(tokens: list[Token]) -> tuple[str, Rows]:
    r"""Return the name and rows of the environment that makes up the tokens, also behind the single brace of \left\{ ...
    \right; "" if none.
    """
    if len(tokens) > 1 and tokens[0].latex == r"\{" and find_closing(tokens, 0) < 0:
        tokens = tokens[1:]
    if tokens[0].latex != r"\begin" or (end := find_closing(tokens, 0)) < 0:
        return "", []
    sort, start = read_braced_name(tokens, 1)
    if sort not in (*MATRICES, *ALIGNED) or read_braced_name(tokens, end + 1) != (sort, len(tokens)):
        return "", []
    inside = tokens[start:end]
    if sort in ("array", "alignedat", "alignat") and inside and inside[0].latex == "{":
        inside = inside[find_closing(inside, 0) + 1 :]
    rows = [split_by(row, "&") for row in split_by(inside, "\\\\") if row]
    return "cases" if sort in ("dcases", "rcases") else sort, rows


def read_braced_name(tokens: Sequence[Token], place: int) -> tuple[str, int]:
    r"""Return the name behind \begin or \end, without the star of align*, and the position after it."""
    inside = [token.latex for token in tokens[place : place + 4]]
    length = 4 if inside[2:3] == ["*"] else 3
    if inside[:1] == ["{"] and inside[length - 1 :][:1] == ["}"] and tokens[place + 1].kind == LETTERS:
        return inside[1], place + length
    return "", place


def join_lines(sort: str, rows: Rows) -> list[Token] | None:
    r"""Join aligned lines or a system into one answer, with "and" between lines; None for a matrix.

    A line that begins with a relation sign continues the line before it: x &= 2 + 3 \\ &= 5.
    """
    rows = [row for row in rows if any(row)]
    cells = [cell for row in rows for cell in row]
    is_aligned = sort in ALIGNED or any(cell and cell[0].latex in RELATIONS for row in rows for cell in row[1:])
    are_relations = all(any(token.latex in RELATIONS for token in cell) for cell in cells)
    is_system = len(cells) == len(rows) and (sort == "cases" or (sort == "array" and (are_relations or len(cells) == 1)))
    if not rows or not (is_aligned or is_system):
        return None
    line: list[Token] = []
    for row in rows:
        tokens = [token for cell in row for token in cell]
        goes_on = not line or tokens[0].latex in RELATIONS
        line += [*([] if goes_on else [TOGETHER]), *tokens]
    return line


# ---------------------------------------------------------------------------------------------------------------------
# Relations
# ---------------------------------------------------------------------------------------------------------------------


def find_relation(tokens: Sequence[Token], place: int) -> str:
    """Return the relation of a token, or "". The word "in" is a relation only before a bracket: x in [2, 5], but 5 in is a
    length.
    """
    token = tokens[place]
    if token.kind == LETTERS and token.text == "in" and place + 1 < len(tokens):
        return "in" if tokens[place + 1].text in ("[", "(", "{") else ""
    return RELATIONS.get(token.latex, "")


def read_joined_conditions(tokens: list[Token], depth: int) -> Reading | None:
    r"""Read conditions joined by a union sign: x \le 2 \cup x \ge 5."""
    parts = split_by(tokens, r"\cup")
    if len(parts) < 2 or not all(any(token.latex in RELATIONS for token in part) for part in parts):
        return None
    items = [read_part(part, depth + 1) for part in parts]
    return Group("cup", tuple(items)) if all(map(is_condition, items)) else None


def read_relation(tokens: list[Token], depth: int) -> Reading | None:
    places = [place for place in find_top(tokens, lambda token: True) if find_relation(tokens, place)]
    if not places:
        return None
    if (conditions := read_joined_conditions(tokens, depth)) is not None:
        return conditions
    parts, ops = split_at(tokens, places), [find_relation(tokens, place) for place in places]
    if not parts[-1] or len(ops) > 10:
        return Value(write_latex(tokens), refused="a relation without an end")
    if not parts[0] and ops[0] not in ("=", "~"):  # "> 5" is not the answer 5
        return Words(write_latex(tokens).replace(" ", ""))
    if not parts[0]:  # "= 5"
        parts, ops = parts[1:], ops[1:]
    if not all(parts):
        return Value(write_latex(tokens), refused="a relation with a gap")
    readings = [read_part(part, depth + 1) for part in parts]
    if not ops or (ops == ["in"] and find_name(readings[0]) is not None):
        return readings[-1]
    return Relation(tuple(readings), tuple(ops))


# ---------------------------------------------------------------------------------------------------------------------
# Labels
# ---------------------------------------------------------------------------------------------------------------------


def read_choice(tokens: list[Token], depth: int) -> Reading | None:
    r"""Read (A), A), A:, \text{(A)}, \textbf{A}, also with its meaning behind it: (A) 12. A bare A may be a variable."""
    length, letter = find_choice(tokens)
    if not length:
        return None
    rest = tokens[length:]
    if not rest:
        return Words(letter, label=True)
    # "(A) or (B)" and "(A) 12, (B) 13" are lists of alternatives; "(A) + 1" and "(A)(B)" are algebra.
    begins = (rest[0].spaced or tokens[0].kind == TEXT) and rest[0].kind != SIGN and rest[0].latex not in RELATIONS
    denied = rest[0].text.split(" ")[0].lower() in DENIALS
    labels = [find_choice(rest[place : place + 4]) for place in range(len(rest))]
    another = labels[0][0] or any(count > 1 and other in CHOICES for count, other in labels)  # A) 12 B) 13
    another = another or (len(texts := list_texts(rest)) == 1 and texts[0] in set(CHOICES) - {letter})  # (A) B
    if letter not in CHOICES or not begins or denied or another or split_items(tokens) is not None:
        return None
    return Group("choice", (Words(letter, label=True), read_part(rest, depth + 1)))


READERS = (
    read_choice, read_clock, read_date, read_dots, read_list, read_relation, read_union, read_ratio, read_brackets, read_environment, read_words, read_based,
)  # fmt: skip
"""Tried in this order. Tokens that none of them recognises are a value."""
