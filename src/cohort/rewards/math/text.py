r"""One spelling for what is only typography in a final answer, and its tokens. Nothing here knows what an answer means.

Two forms are made. `normalise` gives a text to compare letter by letter; `tokens_of` gives tokens for cohort.rewards.math.shapes
and keeps what matters there: which letters were \text{}, and where spaces were (in "100, 200" the comma separates, in "100,200"
it may group digits). Every pattern is linear, and texts are cut to MAX_ANSWER_CHARS before they come here.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

MAX_ANSWER_CHARS = 1000
"""A longer answer is compared as it stands: it is not read."""
MAX_TOKENS = 600

# ---------------------------------------------------------------------------------------------------------------------
# Characters
# ---------------------------------------------------------------------------------------------------------------------

MINUS = dict.fromkeys("−–—‐‑‒﹣－", "-")
SPACE = dict.fromkeys("\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000\t\n\r\f\v", " ")
WIDE = {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F) if chr(code) not in MINUS}
"""Full-width forms. NFKC would do it too, and would turn 5² into 52."""
CHARACTERS = str.maketrans({**WIDE, **MINUS, **SPACE})

SYMBOLS = {
    "×": r"\times ", "⋅": r"\cdot ", "·": r"\cdot ", "∙": r"\cdot ", "∗": "*", "÷": "/", "∕": "/", "⁄": "/", "∶": ":",
    "≤": r"\le ", "⩽": r"\le ", "≥": r"\ge ", "⩾": r"\ge ", "≠": r"\ne ", "≦": r"\le ", "≧": r"\ge ", "≈": r"\approx ", "≃": r"\approx ", "∧": r"\land ", "∨": r"\lor ", "∈": r"\in ", "∪": r"\cup ",
    "∞": r"\infty ", "π": r"\pi ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ", "φ": r"\phi ",
    "√": r"\sqrt ", "±": r"\pm ", "∅": r"\emptyset ", "°": r"^\circ ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}",
    "º": r"^\circ ", "∠": r"\angle ", "Δ": r"\Delta ", "∛": r"\sqrt[3]", "∴": "", "…": r"\ldots ", "′": "'",
}  # fmt: skip
SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n", strict=True))
SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
RAISED = re.compile(f"[{''.join(SUPERSCRIPTS)}]+")
LOWERED = re.compile(f"[{''.join(SUBSCRIPTS)}]+")


def plain_characters(text: str) -> str:
    """Digits of all scripts as 0-9, every kind of minus and space as one, nothing invisible. 5² stays what it is."""
    text = MET_DIGITS.sub(" ", text)
    if text.isascii():
        return text.translate(CHARACTERS)
    return "".join(map(plain_character, text.translate(CHARACTERS)))


MET_DIGITS = re.compile(r"(?<=\d)(?:\\?\$|\\[()\[\]]|\\(?:left|right)(?![A-Za-z]))+(?=\d)")
"""Delimiters between two digits, which are no number without them: $5$$6$."""


def plain_character(character: str) -> str:
    if character.isascii():
        return character
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    category = unicodedata.category(character)
    # Cf: zero-width and direction marks; Mn would be accents, which make another letter; FE00-FE0F choose a glyph.
    if category == "Cf" or "\ufe00" <= character <= "\ufe0f":
        return ""
    if "\U0001d400" <= character <= "\U0001d7ff":  # letters of mathematical alphabets
        return unicodedata.normalize("NFKC", character)
    return character


def spelled_symbols(text: str) -> str:
    r"""Mathematical characters as the LaTeX for them: x² as x^{2}, ½ as \frac{1}{2}, π as \pi."""
    if text.isascii():
        return text
    text = SMALL_FRACTION.sub(lambda found: rf"\frac{{{plain_small(found[1])}}}{{{plain_small(found[2])}}}", text)
    text = RAISED.sub(lambda found: "^{" + "".join(SUPERSCRIPTS[c] for c in found.group()) + "}", text)
    text = LOWERED.sub(lambda found: "_{" + "".join(SUBSCRIPTS[c] for c in found.group()) + "}", text)
    return "".join(SYMBOLS.get(c) or vulgar_fraction(c) for c in text)


SMALL_FRACTION = re.compile("([⁰¹²³⁴⁵⁶⁷⁸⁹]+)⁄([₀₁₂₃₄₅₆₇₈₉]+)")


def plain_small(digits: str) -> str:
    return "".join(SUPERSCRIPTS.get(digit) or SUBSCRIPTS[digit] for digit in digits)


def vulgar_fraction(character: str) -> str:
    if "¼" <= character <= "¾" or "⅐" <= character <= "⅞":
        top, _, bottom = unicodedata.normalize("NFKC", character).partition("⁄")
        return rf"\frac{{{top}}}{{{bottom}}}"
    return character


# ---------------------------------------------------------------------------------------------------------------------
# Text compared letter by letter
# ---------------------------------------------------------------------------------------------------------------------

REPLACEMENTS = (
    (re.compile(r"\\(?:left|right|displaystyle)(?![A-Za-z])|\\!|\\[()\[\]]|\\?\$"), ""),
    (re.compile(r"\\[,;: ]|~|\\q?quad(?![A-Za-z])"), " "),
    (re.compile(r"\{([,:])\}"), r"\1"),
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\(?:text|textbf|textrm|textit|mathrm|mathbf|mbox)[ ]?\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"[ ]+"), " "),
)
LOOSE_SPACE = re.compile(r"(?<![\w.,;])[ ]|[ ](?![\w.])")


def normalise(text: str) -> str:
    """One spelling for what is only typography. Superscripts stay what they are: 5² is not 52."""
    text = plain_characters(text)
    for pattern, replacement in REPLACEMENTS:
        text = pattern.sub(replacement, text)
    text = text.strip(" *`").removesuffix(".").strip(" *`")
    # A space between two words or numbers separates them ("4 5" is not 45), and so does one after a comma ("1, 234" is not
    # 1,234); any other is typography.
    return LOOSE_SPACE.sub("", text)


# ---------------------------------------------------------------------------------------------------------------------
# Tokens
# ---------------------------------------------------------------------------------------------------------------------

NUMBER, LETTERS, COMMAND, SIGN, TEXT = "number", "letters", "command", "sign", "text"


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    spaced: bool = False
    """A space stood before it."""
    roman: bool = False
    r"""A letter in upright type: \mathrm{m} may be a unit where m is a variable."""


DROPPED = re.compile(
    r"(?<!\\)\\(?:left|right|middle|therefore|displaystyle|textstyle|limits|nolimits|[bB]ig{1,2}[lrm]?)(?![A-Za-z])"
    r"|(?<!\\)\\!|(?<!\\)\\[()\[\]]|(?<!\\)\$"
    # Colour, size and weight; \bf{x} with braces is text, and read as such.
    r"|(?<!\\)\\(?:(?:text)?color|colorbox)[ ]?\{[^{}]{0,40}\}|(?<!\\)\\underline(?![A-Za-z])"
    r"|(?<!\\)\\(?:tiny|small|normalsize|large|Large|LARGE|huge|Huge|bfseries|itshape)(?![A-Za-z])"
    r"|(?<!\\)\\(?:bf|it|rm|sf|tt)(?![A-Za-z]|[ ]?\{)"
)
GAPS = re.compile(r"(?<!\\)\\[,;:> ]|~|(?<!\\)\\q?quad|(?<!\\)\\(?:thin|med|thick|en)space(?![A-Za-z])|\\hspace\*?\{[^{}]*\}")
ROW_GAP = re.compile(r"\\\\\[[^\[\]]{0,20}\]")
r"""A double backslash ends a row of a matrix; \\[2pt] with more space below it."""
SAME_COMMANDS = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "nicefrac": "frac", "sfrac": "frac", "dbinom": "binom", "tbinom": "binom",
    "leq": "le", "leqslant": "le", "leqq": "le", "geqq": "ge", "geq": "ge", "geqslant": "ge", "neq": "ne", "sim": "approx", "simeq": "approx",
    "approxeq": "approx", "varnothing": "emptyset", "infin": "infty", "degree": "circ", "ast": "times", "lbrace": "{",
    "rbrace": "}", "lvert": "vert", "rvert": "vert", "mid": "vert", "lbrack": "[", "rbrack": "]", "lt": "<", "gt": ">",
    "colon": ":", "varphi": "phi", "varepsilon": "epsilon", "lg": "lg", "arccot": "arccot", "tg": "tan", "land": "and",
    "wedge": "and", "lor": "or", "vee": "or", "dots": "ldots", "cdots": "ldots", "dotsc": "ldots", "dotsb": "ldots",
}  # fmt: skip
TEXT_COMMANDS = ("text", "textbf", "textrm", "textit", "textsf", "texttt", "mbox", "mathrm", "mathbf", "mathit", "mathsf",
                 "operatorname", "rm", "bf", "boldsymbol", "bm", "textnormal", "unit", "hbox", "emph", "textup", "mathup", "textsl", "si")  # fmt: skip
UPRIGHT = (r"\mathrm", r"\mathup", r"\rm", r"\unit", r"\si")
"""As units are set; a bold letter is a vector, a slanted one a variable."""
TOKEN = re.compile(
    r"(?P<space>[ ]+)"
    rf"|\\(?:{'|'.join(sorted(TEXT_COMMANDS, key=len, reverse=True))})[ ]?\{{(?P<text>(?:[^{{}}]|\^\{{-?\d\}})*)\}}"
    r"|(?P<command>\\(?:[A-Za-z]+\*?|.))"
    # Three digits behind every comma or space: thousands. Then plain decimals, and 2e-3 as computers write it.
    r"|(?P<number>\d{1,3}(?:,\d{3})+(?!\d|,\d)(?:\.\d+)?|\d{1,3}(?:[ ]\d{3})+(?!\d|,\d)(?:\.\d+)?"
    r"|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+(?![\d.]))?)"
    r"|(?P<letters>[^\W\d_]+)"
    r"|(?P<sign>.)"
)
DOLLARS = re.compile(r"^\s*(-?\s*)\$(?=\s*-?[\d.])([^$]*)$")
CURRENCY = re.compile(r"^\s*(?:US|CA|AU)\s?(?=\\?\$)"), re.compile(r"^\s*Rs\b\.?\s?(?=\d)")
BARE_DEGREE = re.compile(r"(?<![\^{ ])[ ]?\\degree(?![A-Za-z])")
SHORT_POWER = re.compile(r"(?<=[\d ])(sq|cu)\.?(?=[ ][a-z])")
SHORTENED = {"sq": "square", "cu": "cubic"}
CHOOSE = re.compile(r"\{([^{}\\]+)\\choose(?![A-Za-z])([^{}\\]+)\}")
UNION = re.compile(r"(?<=[)\]])[ ]?U[ ]?(?=[(\[])")
LETTER_TIMES = re.compile(r"(?<=\d)[ ]?[xX][ ]?(?=10[ ]?\^)")
"""3 x 10^5"""
FULL_STOP = re.compile(r"(?<![.\\])\.(?=[ $*`)\]\\]*$)")
"""The end of a sentence, inside or outside of dollar signs; three dots are not."""
COUNTED = re.compile(
    r"[ ]*(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:[ ]?:[ ]?\d+)+|\d+(?:\.\d+)?)(?:[ ]+([^\W\d_](?:[^\d]|\^\{?-?\d\}?)*))?"
)
TIGHT_THOUSANDS = re.compile(
    r"(?<=\d)[ ]?(?:\{[ ]?(?:\\!)*\\?,(?:\\!)*[ ]?\}(?:\\!)*|\\(?:text|textnormal|mathrm|mathord|mathpunct)[ ]?\{[ ]?,[ ]?\}"
    r"|(?:\\!)*[ ]?,[ ]?(?:\\!|\{\}|\\hspace\*?\{-[^{}]{1,9}\})+)[ ]?(?=\d{3}(?!\d))"
)
r"""1{,}234 and 1,\!234: braces, or a negative space behind the comma, say that it groups digits and separates nothing."""
COLON = re.compile(r"(?:\\(?:text|mathrm|mathbin|mathrel|mathord|mathpunct)[ ]?)?\{[ ]?:[ ]?\}")
SPACES = re.compile(r"[ ]{2,}")
ELLIPSIS = re.compile(r"\.(?:[ ]?\.)+")
DOUBLED = re.compile(r"(?<!\\)\\\\(?=[A-Za-z]{2}|[{}%$])")
r"""\\frac for \frac, as text is that was escaped twice. Outside of an environment a double backslash ends no row."""
SET_NUMBERS = re.compile(r"(?=[^\d]*[1-9])(?:[A-Za-z][ ]?=[ ]?)?[-+(\[]*\d(?:[\d. ]|,[ ]?-?)*(?:/[1-9]\d*)?[)\]]*(?<![. ])")
"""Numbers without words, as text."""
LINED_UP = re.compile(r"(?<!\\)&(?=[ ]?(?:[=<>]|\\(?:le|ge|ne|approx|in)))")
r"""The & of x &= 5, out of an environment: as in \Aboxed{x &= 5}."""
TEXT_DEGREES = re.compile(r"\\(?:mathrm|text)[ ]?\{[ ]?\^(?:\\circ|\{\\circ\})[ ]?([CF])\}")
NEGATED = re.compile(r"(?<!\\)\\not[ ]?=")
COMPARED = re.compile(r"<[ ]?=|=<|>[ ]?=|(?<![\d)!])!=|(?<=[\d)][ ])!=|<>|==")
"""Relations as programs write them. 5!=120 is a factorial, and x != 5 says that x is not 5."""
ASCII_RELATIONS = {"<=": r"\le ", "=<": r"\le ", ">=": r"\ge ", "!=": r"\ne ", "<>": r"\ne ", "==": "="}


def tokens_of(text: str) -> list[Token] | None:
    """The answer as tokens; None where it is too long to be meant."""
    text = FULL_STOP.sub("", spelled_symbols(plain_characters(text)).rstrip())
    text = text if r"\begin" in text else LINED_UP.sub("", DOUBLED.sub(r"\\", text))
    text = CURRENCY[1].sub("₹", CURRENCY[0].sub("", BARE_DEGREE.sub(r"^\\circ ", text)))
    text = CHOOSE.sub(r"\\binom{\1}{\2}", UNION.sub(r"\\cup ", SHORT_POWER.sub(lambda word: SHORTENED[word[1]], text)))
    text = DOLLARS.sub(r"\1\\$\2", text)  # a single dollar sign before a number is money, any other delimits mathematics
    text = LETTER_TIMES.sub(r" \\times ", text)
    text = COLON.sub(":", ROW_GAP.sub(r"\\\\", text))
    text = COMPARED.sub(lambda sign: ASCII_RELATIONS["".join(sign.group().split())], NEGATED.sub(r"\\ne ", text))
    text = SPACES.sub(" ", GAPS.sub(" ", DROPPED.sub("", TIGHT_THOUSANDS.sub("", text))))
    text = TEXT_DEGREES.sub(r"^\\circ \\text{\1}", text)
    text = ELLIPSIS.sub(r"\\ldots ", text)
    tokens: list[Token] = []
    spaced = False
    for match in TOKEN.finditer(text):
        if match.lastgroup == "space" or match.lastgroup is None:
            spaced = True
            continue
        token = token_of(match, spaced)
        if token == Token(TEXT, "", spaced):
            spaced = True
            continue
        counted = COUNTED.fullmatch(token.text) if token.kind == TEXT else None
        if token.kind == TEXT and SET_NUMBERS.fullmatch(token.text):  # \text{x = 5}, \text{(1, 2)}
            tokens += tokens_of(token.text) or []
        elif counted is not None:  # \text{12 apples}, \text{9:30 pm}
            for place, part in enumerate(re.split("[ ]?:[ ]?", counted[1])):
                tokens += [*([Token(SIGN, ":")] if place else []), Token(NUMBER, part, spaced and not place)]
            tokens += [Token(TEXT, counted[2], True)] if counted[2] else []
        else:
            tokens.append(token)
        spaced = False
        if len(tokens) > MAX_TOKENS:
            return None
    return tokens


def token_of(match: re.Match[str], spaced: bool) -> Token:
    kind, found = str(match.lastgroup), match.group(str(match.lastgroup))
    if kind == "text":
        # One letter in roman type is that letter (\mathrm{e}, \mathbf{v}); more are words.
        word = found.strip()
        if len(word) == 1 and word.isalpha() and not match.group().startswith((r"\text", r"\mbox", r"\hbox")):
            return Token(LETTERS, word, spaced, roman=match.group().startswith(UPRIGHT))
        if word in ("&", "\\&"):
            return Token(TEXT, "and", spaced)
        if word in ("gcd", "lcm"):
            return Token(LETTERS, word, spaced)
        return Token(TEXT, " ".join(found.split()), spaced)
    if kind == "command":
        name = found[1:].removesuffix("*")
        name = SAME_COMMANDS.get(name, name)
        if name in ("and", "or", "&"):
            return Token(TEXT, "and" if name == "&" else name, spaced)
        if name in ("<", ">", ":", "[", "]"):
            return Token(SIGN, name, spaced)
        if name in ("vert", "|"):
            return Token(SIGN, "|", spaced)
        if name == "%":
            return Token(SIGN, "%", spaced)
        return Token(COMMAND, name, spaced)
    if kind == "letters" and found.lower() in ("infinity", "oo", "inf"):
        return Token(COMMAND, "infty", spaced)
    return Token(kind, found, spaced)
