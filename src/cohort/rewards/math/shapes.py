r"""What kind of answer is it: a value, a tuple or interval, a set, a list of alternatives, a relation, a matrix, words?

`read(text)` gives the shape. Brackets, separators, relations, units and percent signs are understood here, by rules that
docs/math-rewards.md writes down with examples; only what is left, single expressions, is a matter of algebra. So no verdict
about order, openness or alternatives is ever left to a computer algebra system.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cohort.rewards.math.environments import environment_of, one_line
from cohort.rewards.math.intervals import all_together, is_condition, joined_conditions, without_points
from cohort.rewards.math.kinds import EVERY_NUMBER, Group, Relation, Shape, Value, Words
from cohort.rewards.math.levels import as_text, closes_at, is_sign, levels, spelled, split_at, ungrouped
from cohort.rewards.math.others import unfit_for_others
from cohort.rewards.math.quantities import without_unit
from cohort.rewards.math.statements import name_of, name_of_part
from cohort.rewards.math.text import COMMAND, LETTERS, NUMBER, SIGN, TEXT, Token, tokens_of
from cohort.rewards.math.times import read_clock, read_date
from cohort.rewards.math.tree import (
    MAX_DEPTH,
    Node,
    Refused,
    Unreadable,
    check_size,
    exact,
    number,
    read_expression,
)
from cohort.rewards.math.units import is_doubtful
from cohort.rewards.math.words import CHOICES, DENIALS, choice_at_start, read_based, read_dots, read_words

MAX_ITEMS = 60

RELATIONS = {
    (SIGN, "="): "=", (SIGN, "<"): "<", (SIGN, ">"): ">", (COMMAND, "le"): "<=", (COMMAND, "ge"): ">=", (COMMAND, "ne"): "!=",
    (COMMAND, "approx"): "~", (COMMAND, "in"): "in", (COMMAND, "equiv"): "mod=", (COMMAND, "to"): "to",
    (COMMAND, "implies"): "to", (COMMAND, "Rightarrow"): "to", (COMMAND, "rightarrow"): "to",
}  # fmt: skip
RELATION_SIGNS = frozenset(RELATIONS)


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
    while len(tokens) > 1 and tokens[0].kind in (TEXT, LETTERS) and tokens[0].text.strip(" .:").lower() in ROUNDED:
        tokens = tokens[2:] if len(tokens) > 2 and tokens[1].text in (".", ":") else tokens[1:]
    while (
        len(tokens) > 1
        and tokens[-1].kind in (TEXT, LETTERS)
        and tokens[-1].text.strip(" .").lower() in ("approximately", "approx")
    ):
        tokens = tokens[:-1]
    return tokens


ROUNDED = frozenset({
    "approximately", "approx", "about", "around", "roughly", "circa", "exactly", "precisely", "equal to", "equals", "answer", "final answer",
    "the answer is", "the final answer is", "answer is", "is",
})  # fmt: skip
"""Before a number they say no more than the sign does: about 5 is \\approx 5."""


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


def read_list(tokens: list[Token], depth: int) -> Shape | None:
    parts = items_of(tokens)
    if parts is None:
        if len(tokens) == 1 and tokens[0].kind == NUMBER and "," in tokens[0].text and "." not in tokens[0].text:
            several = read_list(ungrouped(tokens), depth)
            return replace(several, grouped=read_value(tokens)) if isinstance(several, Group) else None
        return None
    if not parts:
        return None
    if (several := read_systems(tokens, depth)) is not None:
        return several
    items = [read_item(part, depth) for part in parts]
    words = {token.text.strip(" ,").lower() for token in tokens if token.kind in (TEXT, LETTERS)}
    if len(items) == 1:
        return None if words & {"and", "or"} else items[0]  # "5 or" is cut off
    if all(map(is_condition, items)):
        return joined_conditions(items, words)
    items = with_common_name(items)
    apart = all(isinstance(item, Words) and not item.label for item in items) or len(set(map(name_of, items)) - {None}) > 1
    return Group("or" if apart and "or" in words else "", tuple(items))  # Alice or Bob, x = 1 or y = 2: one of them


def read_systems(tokens: list[Token], depth: int) -> Shape | None:
    """p=5, q=2; p=7, q=2: several solutions of several names each."""
    deep = levels(tokens)
    places = [
        p for p, token in enumerate(tokens) if not deep[p] and (is_sign(token, ";") or token.text.strip(" ,").lower() == "or")
    ]
    parts = [part for part in split_at(tokens, places) if part] if places else []
    solutions = [items_of(part) or [] for part in parts]
    named = [[named_at(item) for item in items] for items in solutions]
    if len(parts) < 2 or len(named[0]) < 2 or not all(named[0]) or any(names != named[0] for names in named):
        return None
    return Group("", tuple(read_tokens(part, depth + 1) for part in parts))


def named_at(tokens: Sequence[Token]) -> str:
    """x of x = 5; "" for anything else."""
    return tokens[0].text if len(tokens) > 2 and tokens[0].kind == LETTERS and is_sign(tokens[1], "=") else ""


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
    if len(bars) == 1 and 0 < bars[0] < len(inside) - 1 and inside[bars[0] - 1].kind != NUMBER:  # {x | x > 2}: its condition
        if inside[0].kind == LETTERS and spelled(inside[1 : bars[0]]) in ([], ["in", "mathbb", "R"]):
            return read_tokens(inside[bars[0] + 1 :], depth + 1)
        inside[bars[0]] = Token(SIGN, ":")
        return Words(" ".join(spelled(inside)))  # {2x | x > 2}, and whole numbers x: other sets
    parts = bracketed_items(inside)
    items = [read_item(part, depth) for part in (parts or [inside])]
    return Group("{}", tuple(items))


def is_infinite(shape: Shape) -> bool:
    node = shape.node if isinstance(shape, Value) else None
    inner = node.args[0] if node is not None and node.op == "negate" else node
    return inner is not None and inner.op == "constant" and inner.name == "infty"


def read_union(tokens: list[Token], depth: int) -> Shape | None:
    r"""A \\cup B; A \\cap B where both are intervals; and all numbers, or an interval, without some points."""
    deep = levels(tokens)
    commands = {token.text for p, token in enumerate(tokens) if deep[p] == 0 and token.kind == COMMAND} & {
        "cup",
        "cap",
        "setminus",
    }
    if not commands:
        return None
    command = "cup" if "cup" in commands else min(commands)
    places = [p for p, token in enumerate(tokens) if deep[p] == 0 and token.kind == COMMAND and token.text == command]
    parts = [read_tokens(part, depth + 1) for part in split_at(tokens, places) if part]
    if command == "cup":
        return Group("cup", tuple(parts))
    if len(parts) != 1 + len(places):
        return None
    points = parts[-1]
    if command == "setminus" and len(parts) == 2 and isinstance(points, Group) and points.kind == "{}":
        return without_points(parts[0], points.items)
    return all_together(parts) if command == "cap" else None


def read_ratio(tokens: list[Token], depth: int) -> Shape | None:
    deep = levels(tokens)
    places = [p for p, token in enumerate(tokens) if deep[p] == 0 and is_sign(token, ":")]
    parts = split_at(tokens, places)
    if not places or len(parts) > 5 or not all(parts):
        return None
    items = tuple(read_item(part, depth) for part in parts)
    # "Total: 5" is no ratio.
    return Group(":", items) if all(isinstance(item, Value) and item.node is not None for item in items) else None


def read_environment(tokens: list[Token], depth: int) -> Shape | None:
    found = environment_of(tokens)
    if found is None:
        return None
    if (line := one_line(found, RELATION_SIGNS)) is not None:
        return read_tokens(line, depth + 1)
    widths = {len(row) for row in found.rows}
    if len(widths) != 1 or not all(cell for row in found.rows for cell in row) or len(found.rows) * max(widths) > MAX_ITEMS:
        raise Refused("a matrix that is ragged, has empty cells or is very large")
    kind = found.sort if found.sort in ("vmatrix", "cases") else "matrix"
    items = tuple(read_tokens(cell, depth + 1) for row in found.rows for cell in row)
    return Group(f"{len(found.rows)}x{max(widths)} {kind}", items)


# ---------------------------------------------------------------------------------------------------------------------
# Relations
# ---------------------------------------------------------------------------------------------------------------------


def relation_at(tokens: Sequence[Token], place: int) -> str:
    """The relation that a token is, "" for none. The word in is one before a bracket: x in [2, 5]; 5 in is a length."""
    token = tokens[place]
    if token.kind == LETTERS and token.text == "in" and place + 1 < len(tokens):
        return "in" if tokens[place + 1].text in ("[", "(", "{") else ""
    return RELATIONS.get((token.kind, token.text), "")


def read_joined_conditions(tokens: list[Token], depth: int) -> Shape | None:
    r"""x \le 2 \cup x \ge 5: conditions with the sign of a union between them."""
    deep = levels(tokens)
    cups = [p for p, token in enumerate(tokens) if deep[p] == 0 and token.kind == COMMAND and token.text == "cup"]
    parts = split_at(tokens, cups) if cups else []
    if not parts or not all(any((token.kind, token.text) in RELATIONS for token in part) for part in parts):
        return None
    items = [read_tokens(part, depth + 1) for part in parts]
    return Group("cup", tuple(items)) if all(map(is_condition, items)) else None


def read_relation(tokens: list[Token], depth: int) -> Shape | None:
    deep = levels(tokens)
    places = [p for p in range(len(tokens)) if deep[p] == 0 and relation_at(tokens, p)]
    if not places:
        return None
    if (conditions := read_joined_conditions(tokens, depth)) is not None:
        return conditions
    parts, ops = split_at(tokens, places), [relation_at(tokens, p) for p in places]
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


# ---------------------------------------------------------------------------------------------------------------------
# Words and labels
# ---------------------------------------------------------------------------------------------------------------------


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
        (rest[0].spaced or tokens[0].kind == TEXT)
        and rest[0].kind in (NUMBER, COMMAND, TEXT, LETTERS)
        and (rest[0].kind, rest[0].text) not in RELATIONS
    )
    denied = rest[0].text.split(" ")[0].lower() in DENIALS
    labels = [choice_at_start(rest[place : place + 4]) for place in range(len(rest))]
    another = any(length > 1 and other in CHOICES for length, other in labels)  # A) 12 B) 13
    if letter not in CHOICES or not begins or denied or items_of(tokens) is not None or another or choice_at_start(rest)[0]:
        return None
    return Group("choice", (Words(letter, label=True), read_tokens(rest, depth + 1)))


READERS = (
    read_choice, read_clock, read_date, read_dots, read_list, read_relation, read_union, read_ratio, read_brackets, read_environment, read_words, read_based,
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------------
# Values
# ---------------------------------------------------------------------------------------------------------------------


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
    inner = as_text(body)
    if factor != 1:
        inner = rf"({inner})\cdot\frac{{{factor.numerator}}}{{{factor.denominator}}}"
    try:
        node = read_expression(body)
        check_size(node)
    except Unreadable as problem:
        doubtful = bool(unit) and is_doubtful(unit, text, few=False)
        return Value(inner, unit=unit, refused=unfit_for_others(body, str(problem)), doubtful=doubtful)
    except Refused as problem:
        return Value(text, refused=str(problem))
    count = exact(node) if unit else None
    doubtful = bool(unit) and is_doubtful(unit, text, few=count is not None and abs(count) <= 1)
    return Value(inner, node if factor == 1 else Node("multiply", (node, number(factor))), unit, doubtful=doubtful)
