r"""A number with what may stand around it: a currency before it, a percent sign, a unit or ^\circ behind; or both signs of \pm."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from cohort_verify.math.expressions import FUNCTIONS, GREEK, LOGARITHMS, MARKS, NotUnderstood, read_expression
from cohort_verify.math.kinds import Group, Reading, Value
from cohort_verify.math.text import COMMAND, LETTERS, NUMBER, SIGN, TEXT, Token, find_closing, list_texts, write_latex
from cohort_verify.math.tree import Node, OutOfBounds, check_size, find_exact, number
from cohort_verify.math.units import LETTER_UNITS, SCALES, UNITS, is_doubtful, name_unit

MAX_UNIT_TOKENS = 20
MAX_OTHERS_TOKENS = 150
MAX_OTHERS_DIGITS = 6
MATH_WORDS = frozenset({*FUNCTIONS, *LOGARITHMS, "sqrt", "pi"})
CURRENCIES = {"$": "dollar", "€": "euro", "£": "pound sterling", "¥": "yen", "₹": "rupee", "¢": "cent"}
PERCENT = ("percent", "percentage", "pct", "per cent")
COMPOUND = frozenset({"m", "km", "cm", "mi", "ft", "g", "kg", "mg", "L", "mL", "s", "h", "hr", "min", "sec"})
UNIT_POWER = re.compile(r"\^(?:-?[1-4]|\{-?[1-4]\})")
FOR_OTHERS = frozenset({
    "sum", "prod", "int", "iint", "iiint", "oint", "lim", "to", "rightarrow", "infty", "frac", "over", "sqrt", "binom", "choose", "partial",
    "cdot", "times", "div", "pi", "max", "min", "sup", "inf", "det", "lfloor", "rfloor", "lceil", "rceil", "circ", "prime",
    "arccot", "coth", *LOGARITHMS, *FUNCTIONS, *GREEK, *MARKS,
})  # fmt: skip
r"""What hides or strikes out (\phantom, \cancel) is dropped by some readers: only mathematics is handed on."""

Quantity = tuple[list[Token], str, Fraction]
"""The tokens of the number, the unit, and what a percent sign or "million" multiplies it with."""


def read_value(tokens: list[Token]) -> Reading:
    r"""An expression with what may stand around it; two of them for \pm."""
    signs = [place for place, token in enumerate(tokens) if token.latex == r"\pm"]
    if len(signs) == 1:
        head, tail = tokens[: signs[0]], tokens[signs[0] + 1 :]
        return Group("", tuple(read_value([*head, Token(SIGN, sign), *tail]) for sign in "+-"))
    text = write_latex(tokens)
    body, unit, factor = split_unit(tokens)
    if not body:
        return Value(text)
    inner = write_latex(body)
    if factor != 1:
        inner = rf"({inner})\cdot\frac{{{factor.numerator}}}{{{factor.denominator}}}"
    node, refused, count = None, "", None
    try:
        node = read_expression(body)
        check_size(node)
    except NotUnderstood as problem:
        refused = refuse_others(body, str(problem))
    except OutOfBounds as problem:
        return Value(text, refused=str(problem))
    else:
        count = find_exact(node) if unit else None
        node = node if factor == 1 else Node("multiply", (node, number(factor)))
    doubtful = bool(unit) and is_doubtful(unit, text, few=count is not None and abs(count) <= 1)
    return Value(inner if node is None else write_latex(body), node, unit, refused, doubtful, factor)


def refuse_others(tokens: Sequence[Token], problem: str) -> str:
    """Why another reader is not asked, "" if it is: sentences are no mathematics, and towers of numbers are bombs."""
    if len(tokens) > MAX_OTHERS_TOKENS:
        return "it is long, and not understood: " + problem
    words = [token for token in tokens if token.kind == LETTERS and len(token.text) > 2 and token.text not in MATH_WORDS]
    if words or any(token.kind == TEXT for token in tokens):
        return "there are words in it: " + problem
    signs = [token.text for token in tokens if token.text not in ("{", "(")]
    if any(left.isdecimal() and signs[place + 1 : place + 4 : 2] == ["^", "^"] for place, left in enumerate(signs)):
        return "a tower of powers"
    if any(token.kind == NUMBER and len(token.text) > MAX_OTHERS_DIGITS for token in tokens):
        return "a long number in what is not understood: " + problem
    commands = {token.text for token in tokens if token.kind == COMMAND}
    return "" if commands and commands <= FOR_OTHERS else problem


# ---------------------------------------------------------------------------------------------------------------------
# Units
# ---------------------------------------------------------------------------------------------------------------------


def split_unit(tokens: list[Token]) -> Quantity:
    body, unit, one = flatten_fraction(tokens), "", Fraction(1)
    start = int(body[0].latex == "-")
    if start < len(body) and body[start].kind in (COMMAND, SIGN) and body[start].text in CURRENCIES:
        unit, body = CURRENCIES[body[start].text], [*body[:start], *body[start + 1 :]]
    if not unit and len(body) > 1 and body[-1].kind == SIGN and body[-1].text in CURRENCIES:  # 5 €
        return body[:-1], CURRENCIES[body[-1].text], one
    if len(body) > 1 and body[-1].latex == "%":
        return body[:-1], unit, Fraction(1, 100)
    for length, degrees in ((2, ["^", "circ"]), (4, ["^", "{", "circ", "}"])):
        if len(body) > length and [token.text for token in body[-length:]] == degrees:
            # 90^\circ is 90 degrees; \sin 30^\circ and 30^\circ + 45^\circ have no unit.
            inside = [token for token in body[:-length] if token.text == "circ" or token.text in FUNCTIONS]
            return (body, "", one) if inside else (body[:-length], "degree", one)
    end = find_unit(body)
    return (body, unit, one) if end is None else read_unit(tokens, body, unit, end)


def read_unit(tokens: list[Token], body: list[Token], currency: str, end: int) -> Quantity:
    """The quantity whose unit begins at `end`."""
    name, factor = " ".join(list_texts(body[end:])), Fraction(1)
    head, _, others = name.partition(" ")
    if name in PERCENT:
        return body[:end], currency, Fraction(1, 100)
    if head in PERCENT:
        return body, currency, factor
    if head in SCALES:
        factor, name = Fraction(SCALES[head]), others
    unit = name_unit(name) if name else ""
    if currency and unit is not None and unit.startswith("/"):  # $18 per day
        return body[:end], currency + unit, factor
    if unit is None or (currency and unit not in ("", currency)):
        return list(tokens), "", Fraction(1)
    if unit in ("celsius", "fahrenheit") and [token.text for token in body[:end][-2:]] == ["^", "circ"]:
        return body[: end - 2], f"degree {unit}", factor
    return body[:end], currency or unit, factor


def find_unit(body: list[Token]) -> int | None:
    r"""Where words behind a number begin: \text{...}, or bare words that are no variables; exponents of units included."""
    last = len(body) - count_power(body, len(body))
    if (
        last > 3 and body[last - 2].latex == "/" and body[last - 4].kind == NUMBER and body[last - 3].spaced
    ):  # 20 m/s, 9.8 m/s^2
        above, below = body[last - 3], body[last - 1]
        if {above.text, below.text} <= COMPOUND and above.kind == below.kind == LETTERS:
            return last - 3
    start, place = None, len(body)
    while place > 1:
        if len(body) - place > MAX_UNIT_TOKENS:
            return None
        token, power = body[place - 1], count_power(body, place)
        if power and is_word(body[place - power - 1]):
            place -= power
            continue
        if is_word(token):
            start = place - 1
        elif start is None or not (token.latex == "/" or token.text == "cdot"):
            break
        place -= 1
    if start is None:
        return None
    before = body[start - 1]
    # A bare word behind letters or a sign is part of an expression; behind a number or a bracket it is a unit.
    return start if before.kind == NUMBER or before.text in (")", "}", "pi") or body[start].kind == TEXT else None


def count_power(body: list[Token], place: int) -> int:
    """How many tokens before `place` are the exponent of a unit: ^2, ^{-1}. 0 for none."""
    pieces = ((length, "".join(token.text for token in body[place - length : place])) for length in range(2, min(6, place)))
    return next((length for length, piece in pieces if UNIT_POWER.fullmatch(piece)), 0)


def is_word(token: Token) -> bool:
    if token.kind != LETTERS or token.text in MATH_WORDS:
        return token.kind == TEXT
    if token.roman:
        return token.text in LETTER_UNITS and token.text != "d"  # upright, d is of dx
    return (token.spaced and len(token.text) > 2) or token.text in UNITS


def flatten_fraction(body: list[Token]) -> list[Token]:
    r"""5\,\frac{\text{m}}{\text{s}} as 5 \text{m} / \text{s}."""
    start = max((place for place, token in enumerate(body) if token.latex == r"\frac"), default=0)
    if start == 0 or body[-1].latex != "}":
        return body
    middle = find_closing(body, start + 1)
    above, below = body[start + 2 : middle], body[middle + 2 : -1]
    if middle < 0 or find_closing(body, middle + 1) != len(body) - 1 or not above or not below:
        return body
    if body[start - 1].kind != NUMBER or not all(map(is_word, [*above, *below])):
        return body
    return [*body[:start], *above, Token(SIGN, "/"), *below]
