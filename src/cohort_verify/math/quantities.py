r"""Reads a number with a currency before it, or a percent sign, a unit or ^\circ behind it; also both signs of \pm."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from cohort_verify.math.expressions import FUNCTIONS, GREEK, LOGARITHMS, MARKS, NotUnderstood, read_expression
from cohort_verify.math.kinds import Group, Reading, Value
from cohort_verify.math.text import COMMAND, LETTERS, NUMBER, SIGN, TEXT, Token, find_closing, list_texts, write_latex
from cohort_verify.math.tree import Node, OutOfBounds, check_size, find_exact, number

SCALES = {
    "dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
}  # fmt: skip

UNITS = {
    "mm": "millimetre", "cm": "centimetre", "dm": "decimetre", "km": "kilometre", "metre": "metre", "in": "inch", "inches": "inch",
    "ft": "foot", "feet": "foot", "yd": "yard", "mi": "mile", "mg": "milligram", "kg": "kilogram", "lb": "pound", "lbs": "pound",
    "oz": "ounce", "ml": "millilitre", "mL": "millilitre", "hr": "hour", "hrs": "hour", "min": "minute", "mins": "minute",
    "sec": "second", "secs": "second", "ms": "millisecond", "yr": "year", "yrs": "year", "mph": "mile/hour", "kmh": "kilometre/hour",
    "kmph": "kilometre/hour", "rad": "radian", "deg": "degree", "usd": "dollar", "USD": "dollar", "eur": "euro", "EUR": "euro",
    "bucks": "dollar", "kph": "kilometre/hour", "kPa": "kilopascal", "Hz": "hertz", "kHz": "kilohertz", "rpm": "rpm", "people": "person", "men": "man", "women": "woman", "children": "child",
    "gal": "gallon", "tbsp": "tablespoon", "tsp": "teaspoon", "keV": "kiloelectronvolt", "MeV": "megaelectronvolt", "mol": "mole",
    "kcal": "kilocalorie", "INR": "rupee", "GBP": "pound sterling", "RMB": "yuan", "CNY": "yuan", "gallon": "gallon", "quart": "quart", "pint": "pint",
}  # fmt: skip
"""Bare letters that are units behind a number (5 cm, 5cm). A single bare letter is a variable: 5 m is five times m."""

LETTER_UNITS = {
    "m": "metre", "g": "gram", "s": "second", "h": "hour", "l": "litre", "L": "litre", "N": "newton", "J": "joule", "W": "watt",
    "V": "volt", "A": "ampere", "K": "kelvin", "C": "celsius", "F": "fahrenheit", "t": "tonne", "d": "day",
    "nm": "nanometre", "eV": "electronvolt", "kJ": "kilojoule", "kW": "kilowatt", "kN": "kilonewton", "Pa": "pascal", "qt": "quart", "pt": "pint",
}  # fmt: skip
r"""Single letters, and pairs that may be products (nm), are units only in \text{}."""

HEDGES = frozenset({
    "not", "no", "nope", "never", "none", "nor", "isn't", "but", "if", "unless", "except", "maybe", "perhaps", "possibly", "probably", "likely",
    "wrong", "false", "incorrect", "otherwise", "either", "neither", "instead", "rather", "actually", "alternatively", "versus", "vs",
    "unlike", "else", "wait", "hmm", "hm", "oops", "sorry", "correction", "mistake", "error", "guess", "unsure", "uncertain", "unknown",
    "though", "although", "however", "yet", "while", "whereas", "try", "about", "nearly", "almost", "around", "approximately", "approx",
    "circa", "roughly", "something", "ish", "etc",
})  # fmt: skip
"""Words that take an answer back or make it conditional."""

NUMBER_WORDS = frozenset({
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen",
    "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
    "hundred", "thousand", "million", "billion", "trillion", "quadrillion", "mil", "mill", "mln", "mio", "bn", "bln", "tn", "lakh", "lac",
    "crore", "dozen", "score", "gross", "myriad", "googol", "permille", "promille", "permil", "half", "halve", "halves", "third", "quarter",
    "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "hundredth", "thousandth", "millionth", "billionth", "first",
    "grand", "thou", "kilo", "mega", "giga", "hecto", "deca", "deci", "centi", "milli", "micro", "nano", "ppm", "ppb", "bp", "bps", "once", "twice", "thrice", "double", "triple", "both", "several", "few", "many", "couple", "infinite",
    "nil", "lot", "multiple", "quadruple", "quintuple", "sextuple", "twelfth", "sixteenth", "mille", "zeroe",
    # The same in other languages whose plurals end in s or that put such words behind 1.
    "fois", "vece", "veze", "volta", "mal", "prozent", "procent", "porcento", "tausend", "hundert", "mila", "milhar", "milhare", "ciento", "cento", "dutzend", "docena",
    "duzia", "dúzia", "douzaine", "dizaine", "centaine", "millier", "medio", "tercio", "cuarto", "quinto", "demi", "halb", "hälfte",
    "doble", "doppelt", "dobro", "duplo", "triplo", "negativo", "négatif", "negativ", "quadrat",
})  # fmt: skip
"""Numbers, and words that multiply one."""

NO_UNITS = HEDGES | NUMBER_WORDS | {
    "is", "are", "than", "more", "less", "fewer", "least", "most", "or", "and", "to", "from", "with", "without", "remainder", "plus",
    "minus", "squared", "cubed", "mod", "modulo", "when", "where", "for", "therefore", "so", "because", "since", "then", "thus", "hence",
    "factorial", "times", "choose", "root", "over", "divided", "multiplied", "point", "power", "reciprocal", "inverse", "negative",
    "positive", "below", "above", "under", "log", "off", "out", "up", "down", "by", "followed", "next", "recurring", "repeating", "complement", "conjugate", "transpose", "imaginary", "binary", "octal", "hex",
    "hexadecimal", "base", "also", "again", "too", "prime", "dagger", "hat", "tilde", "dot", "opposite", "negation", "backward",
    "doubling", "halving", "tripling", "squaring", "cubing", "greater", "smaller", "larger", "bigger", "higher", "lower", "longer", "shorter",
    "wider", "older", "younger", "heavier", "lighter", "faster", "slower", "further", "farther", "later", "earlier", "other", "another", "short",
    "shy", "apart", "onward", "onwards", "upward", "downward", "beyond", "within", "between", "through", "thru", "till", "until", "fold",
    "exponent", "absolute", "modulus", "magnitude", "logarithm", "sine", "cosine", "tangent", "derivative", "antiderivative", "integral", "dunno", "idk",
    "percentage", "percentile", "upside", "against",
}  # fmt: skip
"""Words behind a number that change its value or begin a sentence."""

ENDING_ALIKE = frozenset({
    "seed", "weed", "bed", "shed", "sled", "breed", "reed", "exactly", "precisely", "only", "totally", "daily", "weekly", "monthly",
    "yearly", "hourly", "annually", "fly", "family", "butterfly", "jelly", "lily",
})  # fmt: skip
"""Words with the ending of a participle or adverb that do not change the number before them."""

KNOWN = frozenset({*UNITS.values(), *LETTER_UNITS.values(), "day", "week", "month", "gram", "cent", "unit", "degree", "point", "litre",
                   "penny", "pence", "rupee", "yen", "yuan", "pound sterling", "bit", "byte", "square unit", "cubic unit", "decade",
                   "century", "acre", "hectare", "cup", "knot", "calorie", "pascal", "ohm", "farad", "tesla", "coulomb", "angstrom", "erg", "dyne",
                   "lumen", "lux", "parsec", "kilobyte", "megabyte", "gigabyte", "rev", "revolution", "dime", "nickel", "ton"})  # fmt: skip
MEASURES = frozenset(
    {"old", "tall", "long", "wide", "high", "deep", "away", "left", "remaining", "total", "altogether", "each"}
)
"""Words behind a unit that say what it measures: 5 years old, 12 apples left."""
COUNTED = frozenset(
    {"fish", "sheep", "deer", "geese", "mice", "teeth", "oxen", "dice", "lice", "cattle", "aircraft", "feet", "data", "pence"}
)
"""Plurals without an s."""
LARGE = frozenset({"K", "k", "M", "B", "b", "T"})
"""Single letters behind a number that may multiply it: 5K."""
NAMES = LETTER_UNITS | UNITS | {letter: letter for letter in LARGE}

WORD = re.compile(r"[^\W\d_]+|\^|(?<=[^\W\d_])-\d|-?\d+|\S")
TIMES = re.compile(r"\\?cdot(?![A-Za-z])|\\times|[{}*]|(?<=[^\W\d_])-(?=[^\W\d_])|(?<=[^\W\d_])\.(?=[^\W\d_])")
"""Signs between the units of a product, and signs without meaning."""
LOOSE_POWER = re.compile(r"\^[ {]*(-?)[ ]*")
POWERS = {"square": "^2", "sq": "^2", "cubic": "^3", "cu": "^3", "squared": "^2", "cubed": "^3"}
EXPONENT, EXPONENT_OF = re.compile("-?[1-4]"), re.compile(r"\^\d$")
MAX_WORDS = 4


def name_unit(text: str) -> str | None:
    """Return one name for a unit ("sq. cm", "cm^2", "square centimeters"), or None if it is not one."""
    words = WORD.findall(TIMES.sub(" ", LOOSE_POWER.sub(r"^\1", text)).strip(" .-"))
    if not words:
        return ""
    if (terms := read_terms(words)) is None:
        return None
    above = [name for name, divides in terms if not divides]
    if len(above) > 1 and all(
        EXPONENT_OF.sub("", name) in KNOWN for name in above
    ):  # m N is N m; for other words the order counts
        above.sort(key=lambda name: (name != "degree", name))
    return " ".join(above) + "".join(sorted(f"/{name}" for name, divides in terms if divides))


def read_terms(words: Sequence[str]) -> list[tuple[str, bool]] | None:
    """Return the units of a product with their powers, and whether each divides; None if a word is not a unit."""
    terms: list[tuple[str, bool]] = []
    power, divides, grouped = "", False, False
    for place, word in enumerate(words):
        lowered = word.lower()
        if EXPONENT.fullmatch(word):
            if not terms or not (words[place - 1] == "^" or word in ("2", "3") or terms[-1][0] in KNOWN):
                return None
            name, below = terms.pop()
            terms.append((name if word[-1] == "1" else f"{name}^{word[-1]}", below != word.startswith("-")))
        elif lowered in ("squared", "cubed") and terms:
            name, below = terms.pop()
            terms.append((name + POWERS[lowered], below))
            power = ""
        elif lowered in POWERS:
            power = POWERS[lowered]
        elif terms and not power and not divides and lowered in MEASURES:
            continue
        elif word == "/" or lowered == "per":
            divides = True
        elif word == "(" and divides:
            grouped = True
        elif word == ")" and grouped:
            divides = grouped = False
        elif word[0].isalpha() and not changes_value(lowered, is_last=place == len(words) - 1):
            terms.append((name_word(word) + power, divides))
            power, divides = "", divides and grouped
        elif word not in ("^", "."):
            return None
    return None if power or len(terms) > MAX_WORDS or not terms or divides else terms  # "5 squared" is 25


def changes_value(word: str, is_last: bool) -> bool:
    """Return whether a word behind a number may change it: "5 doubled", "5 lakh", but not "5 coloured marbles"."""
    if (
        word != "points"
        and not (is_last and word == "times")
        and {word, word.removesuffix("s"), re.sub("ies$", "y", word)} & NO_UNITS
    ):
        return True
    if re.match("[a-z]*ill(?:i?on|iard)", word) or word.endswith("ths"):  # also in other languages: 5 Millionen, 5 milliards
        return word not in ("months", "moths", "cloths", "paths", "baths", "myths", "lengths", "youths", "booths")
    return is_last and word.endswith(("ed", "ly", "wise", "fold")) and word not in ENDING_ALIKE


def name_word(word: str) -> str:
    if word in NAMES:
        return NAMES[word]
    name = UNITS.get(word.lower(), word.lower())
    if name in KNOWN:
        return name
    name = re.sub(r"(met|lit)ers?$", r"\1re", name)  # American spelling
    if len(name) > 3 and name.endswith("s") and not name.endswith("ss"):
        name = name[:-1]
    return UNITS.get(name, name)


def is_doubtful(unit: str, written: str, few: bool) -> bool:
    """Return whether a unit from `name_unit` may not be one: several unknown words, or one that nothing is counted in.

    A counted noun has an s ("5 apples") unless there is at most one (`few`: "1 apple", "1/2 pizza"). So "5 doppelt" is not 5.
    """
    parts = [EXPONENT_OF.sub("", part) for part in re.split(r"[ /]", unit) if part]
    unknown = [part for part in parts if part not in KNOWN and unit not in KNOWN]
    return len(unknown) > 1 or any(len(part) == 1 or not (few or is_plural(part, written)) for part in unknown)


def is_plural(name: str, written: str) -> bool:
    ends_in_s = f"{name}s" in WORD.findall(written.lower()) and not name.endswith(("s", "u", "i", "ward"))
    return ends_in_s or name in COUNTED or name in ENDING_ALIKE


# ---------------------------------------------------------------------------------------------------------------------
# Numbers with units
# ---------------------------------------------------------------------------------------------------------------------

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
r"""Commands that Math-Verify may read. Some readers drop the content of \phantom or \cancel, so those are not passed on."""

Quantity = tuple[list[Token], str, Fraction]
"""The tokens of the number, the unit, and the factor of a percent sign or "million"."""


def read_value(tokens: list[Token]) -> Reading:
    r"""Read an expression with its unit; a list of two for \pm."""
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
    """Return why no other reader may try, or "": sentences are not mathematics, and towers of powers are attacks."""
    if len(tokens) > MAX_OTHERS_TOKENS:
        return "it is long and not understood: " + problem
    words = [token for token in tokens if token.kind == LETTERS and len(token.text) > 2 and token.text not in MATH_WORDS]
    if words or any(token.kind == TEXT for token in tokens):
        return "there are words in it: " + problem
    signs = [token.text for token in tokens if token.text not in ("{", "(")]
    if any(left.isdecimal() and signs[place + 1 : place + 4 : 2] == ["^", "^"] for place, left in enumerate(signs)):
        return "a tower of powers"
    if any(token.kind == NUMBER and len(token.text) > MAX_OTHERS_DIGITS for token in tokens):
        return "a long number in an expression that is not understood: " + problem
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
            # 90^\circ is 90 degrees. \sin 30^\circ and 30^\circ + 45^\circ have no unit.
            inside = [token for token in body[:-length] if token.text == "circ" or token.text in FUNCTIONS]
            return (body, "", one) if inside else (body[:-length], "degree", one)
    end = find_unit(body)
    return (body, unit, one) if end is None else read_unit(tokens, body, unit, end)


def read_unit(tokens: list[Token], body: list[Token], currency: str, end: int) -> Quantity:
    """Return the quantity whose unit begins at `end`."""
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
    r"""Return the position where a unit begins: \text{...}, or bare words that are not variables, with their exponents."""
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
    # A bare word behind letters or a sign belongs to the expression; behind a number or a bracket it is a unit.
    return start if before.kind == NUMBER or before.text in (")", "}", "pi") or body[start].kind == TEXT else None


def count_power(body: list[Token], place: int) -> int:
    """Return how many tokens before `place` are the exponent of a unit: ^2, ^{-1}."""
    pieces = ((length, "".join(token.text for token in body[place - length : place])) for length in range(2, min(6, place)))
    return next((length for length, piece in pieces if UNIT_POWER.fullmatch(piece)), 0)


def is_word(token: Token) -> bool:
    if token.kind != LETTERS or token.text in MATH_WORDS:
        return token.kind == TEXT
    if token.roman:
        return token.text in LETTER_UNITS and token.text != "d"  # upright, it is the d of dx
    return (token.spaced and len(token.text) > 2) or token.text in UNITS


def flatten_fraction(body: list[Token]) -> list[Token]:
    r"""Return 5\,\frac{\text{m}}{\text{s}} as 5 \text{m} / \text{s}."""
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
