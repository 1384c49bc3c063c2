"""Words behind a number: units under one name each, scales that multiply, and words that are no unit at all."""

from __future__ import annotations

import re
from collections.abc import Sequence

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
"""Bare letters that are read as units behind a number (5 cm, 5cm). A single bare letter is a variable: 5 m is five times m."""

LETTER_UNITS = {
    "m": "metre", "g": "gram", "s": "second", "h": "hour", "l": "litre", "L": "litre", "N": "newton", "J": "joule", "W": "watt",
    "V": "volt", "A": "ampere", "K": "kelvin", "C": "celsius", "F": "fahrenheit", "t": "tonne", "d": "day",
    "nm": "nanometre", "eV": "electronvolt", "kJ": "kilojoule", "kW": "kilowatt", "kN": "kilonewton", "Pa": "pascal", "qt": "quart", "pt": "pint",
}  # fmt: skip
r"""Single letters, and pairs that may be products (nm), are units in \text{} only."""

HEDGES = frozenset({
    "not", "no", "nope", "never", "none", "nor", "isn't", "but", "if", "unless", "except", "maybe", "perhaps", "possibly", "probably", "likely",
    "wrong", "false", "incorrect", "otherwise", "either", "neither", "instead", "rather", "actually", "alternatively", "versus", "vs",
    "unlike", "else", "wait", "hmm", "hm", "oops", "sorry", "correction", "mistake", "error", "guess", "unsure", "uncertain", "unknown",
    "though", "although", "however", "yet", "while", "whereas", "try", "about", "nearly", "almost", "around", "approximately", "approx",
    "circa", "roughly", "something", "ish", "etc",
})  # fmt: skip
"""They take back what was said, or bind it to a condition."""

NUMBER_WORDS = frozenset({
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen",
    "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
    "hundred", "thousand", "million", "billion", "trillion", "quadrillion", "mil", "mill", "mln", "mio", "bn", "bln", "tn", "lakh", "lac",
    "crore", "dozen", "score", "gross", "myriad", "googol", "permille", "promille", "permil", "half", "halve", "halves", "third", "quarter",
    "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "hundredth", "thousandth", "millionth", "billionth", "first",
    "grand", "thou", "kilo", "mega", "giga", "hecto", "deca", "deci", "centi", "milli", "micro", "nano", "ppm", "ppb", "bp", "bps", "once", "twice", "thrice", "double", "triple", "both", "several", "few", "many", "couple", "infinite",
    "nil", "lot", "multiple", "quadruple", "quintuple", "sextuple", "twelfth", "sixteenth", "mille", "zeroe",
    # The same in other languages that end their plurals in s, or stand behind 1.
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
"""Behind a number these change its value, or are the beginning of a sentence."""

ENDING_ALIKE = frozenset({
    "seed", "weed", "bed", "shed", "sled", "breed", "reed", "exactly", "precisely", "only", "totally", "daily", "weekly", "monthly",
    "yearly", "hourly", "annually", "fly", "family", "butterfly", "jelly", "lily",
})  # fmt: skip
"""Words that end like participles and adverbs, which are no units, and are harmless behind a number."""

KNOWN = frozenset({*UNITS.values(), *LETTER_UNITS.values(), "day", "week", "month", "gram", "cent", "unit", "degree", "point", "litre",
                   "penny", "pence", "rupee", "yen", "yuan", "pound sterling", "bit", "byte", "square unit", "cubic unit", "decade",
                   "century", "acre", "hectare", "cup", "knot", "calorie", "pascal", "ohm", "farad", "tesla", "coulomb", "angstrom", "erg", "dyne",
                   "lumen", "lux", "parsec", "kilobyte", "megabyte", "gigabyte", "rev", "revolution", "dime", "nickel", "ton"})  # fmt: skip
MEASURES = frozenset(
    {"old", "tall", "long", "wide", "high", "deep", "away", "left", "remaining", "total", "altogether", "each"}
)
"""Behind a unit these say what it measures: 5 years old, 12 apples left."""
COUNTED = frozenset(
    {"fish", "sheep", "deer", "geese", "mice", "teeth", "oxen", "dice", "lice", "cattle", "aircraft", "feet", "data", "pence"}
)
"""Plurals without an s."""
LARGE = frozenset({"K", "k", "M", "B", "b", "T"})
"""Single letters behind a number that may multiply it: 5K."""
NAMES = LETTER_UNITS | UNITS | {letter: letter for letter in LARGE}

WORD = re.compile(r"[^\W\d_]+|\^|(?<=[^\W\d_])-\d|-?\d+|\S")
TIMES = re.compile(r"\\?cdot(?![A-Za-z])|\\times|[{}*]|(?<=[^\W\d_])-(?=[^\W\d_])|(?<=[^\W\d_])\.(?=[^\W\d_])")
"""Between the units of a product, or nothing that is read."""
LOOSE_POWER = re.compile(r"\^[ {]*(-?)[ ]*")
POWERS = {"square": "^2", "sq": "^2", "cubic": "^3", "cu": "^3", "squared": "^2", "cubed": "^3"}
EXPONENT, EXPONENT_OF = re.compile("-?[1-4]"), re.compile(r"\^\d$")
MAX_WORDS = 4


def name_unit(text: str) -> str | None:
    """One name for a unit ("sq. cm", "cm^2", "square centimeters"); None where it is none."""
    words = WORD.findall(TIMES.sub(" ", LOOSE_POWER.sub(r"^\1", text)).strip(" .-"))
    if not words:
        return ""
    if (terms := read_terms(words)) is None:
        return None
    above = [name for name, divides in terms if not divides]
    if len(above) > 1 and all(EXPONENT_OF.sub("", name) in KNOWN for name in above):  # m N is N m; other words have an order
        above.sort(key=lambda name: (name != "degree", name))
    return " ".join(above) + "".join(sorted(f"/{name}" for name, divides in terms if divides))


def read_terms(words: Sequence[str]) -> list[tuple[str, bool]] | None:
    """The units of a product with their powers, and whether each divides; None where a word is no unit."""
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
    """Whether a word behind a number may make another number of it: "5 doubled", "5 lakh"; but "5 coloured marbles" are 5."""
    if (
        word != "points"
        and not (is_last and word == "times")
        and {word, word.removesuffix("s"), re.sub("ies$", "y", word)} & NO_UNITS
    ):
        return True
    if re.match("[a-z]*ill(?:i?on|iard)", word) or word.endswith("ths"):  # in other languages too: 5 Millionen, 5 milliards
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
    """Whether a unit as `name_unit` names it may say anything: more than one word that is in no list, or one that counts nothing.

    What is counted is written with an s ("5 apples"), or is one at most (few: "1 apple", "1/2 pizza"): so "5 doppelt" is no 5.
    """
    parts = [EXPONENT_OF.sub("", part) for part in re.split(r"[ /]", unit) if part]
    unknown = [part for part in parts if part not in KNOWN and unit not in KNOWN]
    return len(unknown) > 1 or any(len(part) == 1 or not (few or is_plural(part, written)) for part in unknown)


def is_plural(name: str, written: str) -> bool:
    ends_in_s = f"{name}s" in WORD.findall(written.lower()) and not name.endswith(("s", "u", "i", "ward"))
    return ends_in_s or name in COUNTED or name in ENDING_ALIKE
