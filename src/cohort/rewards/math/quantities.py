r"""A number with what may stand around it: a currency before it, a percent sign, a unit or ^\circ behind."""

from __future__ import annotations

import re
from fractions import Fraction

from cohort.rewards.math.levels import closes_at, is_sign, spelled
from cohort.rewards.math.text import COMMAND, LETTERS, NUMBER, SIGN, TEXT, Token
from cohort.rewards.math.tree import FUNCTIONS
from cohort.rewards.math.units import LETTER_UNITS, SCALES, unit_of

MATH_WORDS = frozenset({*FUNCTIONS, "log", "lg", "sqrt", "pi"})
CURRENCIES = {"$": "dollar", "€": "euro", "£": "pound sterling", "¥": "yen", "₹": "rupee"}


def without_unit(tokens: list[Token]) -> tuple[list[Token], str, Fraction]:
    """(the tokens of the number, the unit, what a percent sign or "million" multiplies it with)."""
    body, unit, factor = flat_fraction(tokens), "", Fraction(1)
    sign = body[:1] if is_sign(body[0], "-") else []
    rest = body[len(sign) :]
    if rest and rest[0].kind in (COMMAND, SIGN) and rest[0].text in CURRENCIES:
        unit, body = CURRENCIES[rest[0].text], [*sign, *rest[1:]]
    if not unit and len(body) > 1 and body[-1].kind == SIGN and body[-1].text in CURRENCIES:  # 5 €
        return body[:-1], CURRENCIES[body[-1].text], factor
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
    if unit and found is not None and found.startswith("/"):  # $18 per day
        found = unit = unit + found
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


MAX_UNIT_TOKENS = 20
COMPOUND = frozenset({"m", "km", "cm", "mi", "ft", "g", "kg", "mg", "L", "mL", "s", "h", "hr", "min", "sec"})


def unit_start(body: list[Token]) -> int | None:
    r"""Where words behind a number begin: \text{...}, or bare words that are no variables; exponents of units included."""
    last = len(body) - power_before(body, len(body))
    if (
        last > 3 and is_sign(body[last - 2], "/") and body[last - 4].kind == NUMBER and body[last - 3].spaced
    ):  # 20 m/s, 9.8 m/s^2
        above, below = body[last - 3], body[last - 1]
        if {above.text, below.text} <= COMPOUND and above.kind == below.kind == LETTERS:
            return last - 3
    start, place = None, len(body)
    while place > 1:
        if len(body) - place > MAX_UNIT_TOKENS:
            return None
        power = power_before(body, place)
        if power and is_word(body[place - power - 1]):
            place -= power
            continue
        token = body[place - 1]
        if is_word(token):
            start = place - 1
        elif start is None or not (is_sign(token, "/") or token.text == "cdot"):
            break
        place -= 1
    if start is None:
        return None
    before = body[start - 1]
    # A bare word behind letters or a sign is part of an expression; behind a number or a bracket it is a unit.
    return start if before.kind == NUMBER or before.text in (")", "}", "pi") or body[start].kind == TEXT else None


def power_before(body: list[Token], place: int) -> int:
    """How many tokens before `place` are the exponent of a unit: ^2, ^{-1}. 0 for none."""
    for length in range(2, 6):
        piece = "".join(token.text for token in body[place - length : place]) if length < place else ""
        if UNIT_POWER.fullmatch(piece):
            return length
    return 0


UNIT_POWER = re.compile(r"\^(?:-?[1-4]|\{-?[1-4]\})")


def is_word(token: Token) -> bool:
    if token.kind == TEXT:
        return True
    if token.kind != LETTERS or token.text in MATH_WORDS:
        return False
    if token.roman:
        return token.text in LETTER_UNITS and token.text != "d"  # upright, d is of dx
    return (token.spaced and len(token.text) > 2) or unit_of(token.text, known=True) is not None


def flat_fraction(body: list[Token]) -> list[Token]:
    r"""5\,\frac{\text{m}}{\text{s}} as 5 \text{m} / \text{s}."""
    places = [place for place, token in enumerate(body) if token.kind == COMMAND and token.text == "frac"]
    if not places or places[-1] == 0 or not is_sign(body[-1], "}"):
        return body
    start = places[-1]
    middle = closes_at(body, start + 1)
    above, below = body[start + 2 : middle], body[middle + 2 : -1]
    if middle < 0 or closes_at(body, middle + 1) != len(body) - 1 or not above or not below:
        return body
    if body[start - 1].kind != NUMBER or not all(map(is_word, [*above, *below])):
        return body
    return [*body[:start], *above, Token(SIGN, "/"), *below]
