r"""The text of a final answer without typographical differences, as a string and as tokens. Nothing here knows the meaning of
an answer.

`normalise` returns a text to compare letter by letter. `read_tokens` returns tokens for cohort_verify.math.readers, which also
need to know which letters were in \text{} and where spaces were: in "100, 200" the comma separates, in "100,200" it may group
digits. All patterns are linear; callers cut texts to MAX_ANSWER_CHARS.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

MAX_ANSWER_CHARS = 1000
"""A longer answer is not read, only compared as text."""
MAX_TOKENS = 600
NUMBER, LETTERS, COMMAND, SIGN, TEXT = "number", "letters", "command", "sign", "text"
RELATIONS = {
    "=": "=", "<": "<", ">": ">", r"\le": "<=", r"\ge": ">=", r"\ne": "!=", r"\approx": "~", r"\in": "in", r"\equiv": "mod=",
    r"\to": "to", r"\implies": "to", r"\Rightarrow": "to", r"\rightarrow": "to",
}  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------------
# Characters
# ---------------------------------------------------------------------------------------------------------------------

MINUS = dict.fromkeys("−–—‐‑‒﹣－", "-")
SPACE = dict.fromkeys("\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000\t\n\r\f\v", " ")
WIDE = {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F) if chr(code) not in MINUS}
"""Full-width forms. NFKC would also convert them, but would turn 5² into 52."""
CHARACTERS = str.maketrans({**WIDE, **MINUS, **SPACE})

SYMBOLS = {
    "×": r"\times ", "⋅": r"\cdot ", "·": r"\cdot ", "∙": r"\cdot ", "∗": "*", "÷": "/", "∕": "/", "⁄": "/", "∶": ":",
    "≤": r"\le ", "⩽": r"\le ", "≥": r"\ge ", "⩾": r"\ge ", "≠": r"\ne ", "≦": r"\le ", "≧": r"\ge ", "≈": r"\approx ", "≃": r"\approx ", "∧": r"\land ", "∨": r"\lor ", "∈": r"\in ", "∪": r"\cup ",
    "∞": r"\infty ", "π": r"\pi ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ", "φ": r"\phi ",
    "√": r"\sqrt ", "±": r"\pm ", "∅": r"\emptyset ", "°": r"^\circ ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}",
    "º": r"^\circ ", "∠": r"\angle ", "Δ": r"\Delta ", "∛": r"\sqrt[3]", "…": r"\ldots ", "′": "'",
}  # fmt: skip
VULGAR_FRACTIONS = ((character, unicodedata.normalize("NFKC", character).split("⁄")) for character in "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞")
SPELLED = str.maketrans(SYMBOLS | {character: rf"\frac{{{top}}}{{{bottom}}}" for character, (top, bottom) in VULGAR_FRACTIONS})
SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n", strict=True))
SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
FULL_SIZE = str.maketrans(SUPERSCRIPTS | SUBSCRIPTS)
RAISED = re.compile(f"[{''.join(SUPERSCRIPTS)}]+")
LOWERED = re.compile(f"[{''.join(SUBSCRIPTS)}]+")
SMALL_FRACTION = re.compile("([⁰¹²³⁴⁵⁶⁷⁸⁹]+)⁄([₀₁₂₃₄₅₆₇₈₉]+)")
MET_DIGITS = re.compile(r"(?<=\d)(?:\\?\$|\\[()\[\]]|\\(?:left|right)(?![A-Za-z]))+(?=\d)")
"""Delimiters between two digits, which must not be joined: $5$$6$."""


def unify_characters(text: str) -> str:
    """Map digits of all scripts to 0-9, all kinds of minus signs and spaces to one, and drop invisible characters. 5² is kept."""
    text = MET_DIGITS.sub(" ", text).translate(CHARACTERS)
    return text if text.isascii() else "".join(map(unify_character, text))


def unify_character(character: str) -> str:
    if character.isascii():
        return character
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    # Cf: zero-width and direction marks; FE00-FE0F choose a glyph. Accents (the rest of Mn) make another letter and are kept.
    if unicodedata.category(character) == "Cf" or "\ufe00" <= character <= "\ufe0f":
        return ""
    if "\U0001d400" <= character <= "\U0001d7ff":  # mathematical alphabets
        return unicodedata.normalize("NFKC", character)
    return character


def spell_symbols(text: str) -> str:
    r"""Replace mathematical characters by LaTeX: x² by x^{2}, ½ by \frac{1}{2}, π by \pi."""
    if text.isascii():
        return text
    text = SMALL_FRACTION.sub(lambda found: rf"\frac{{{found[1]}}}{{{found[2]}}}".translate(FULL_SIZE), text)
    text = RAISED.sub(lambda found: "^{" + found.group().translate(FULL_SIZE) + "}", text)
    text = LOWERED.sub(lambda found: "_{" + found.group().translate(FULL_SIZE) + "}", text)
    return text.translate(SPELLED)


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
    """Return the text without typographical differences. Superscripts are kept: 5² is not 52."""
    if text.isascii() and text.isalnum():  # a plain number or word, the usual case
        return text
    text = unify_characters(text)
    for pattern, replacement in REPLACEMENTS:
        text = pattern.sub(replacement, text)
    text = text.strip(" *`").removesuffix(".").strip(" *`")
    # A space between two words or numbers separates them ("4 5" is not 45), and so does one after a comma ("1, 234" is not
    # 1,234). Other spaces are dropped.
    return LOOSE_SPACE.sub("", text)


# ---------------------------------------------------------------------------------------------------------------------
# Tokens
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    spaced: bool = False
    """A space comes before it."""
    roman: bool = False
    r"""A letter in upright type: \mathrm{m} may be a unit where m is a variable."""

    latex: str = field(init=False)
    r"""The LaTeX spelling, which distinguishes the sign = from \text{=}, and the bracket ( from \(."""

    def __post_init__(self) -> None:
        marked = {COMMAND: f"\\{self.text}", TEXT: f"\\text{{{self.text}}}"}
        object.__setattr__(self, "latex", marked.get(self.kind, self.text))

    @property
    def word(self) -> str:
        r"""The letters in lower case, bare or in \text{}; "" for any other token."""
        return self.text.lower() if self.kind in (TEXT, LETTERS) else ""


SAME_COMMANDS = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "nicefrac": "frac", "sfrac": "frac", "dbinom": "binom", "tbinom": "binom",
    "leq": "le", "leqslant": "le", "leqq": "le", "geqq": "ge", "geq": "ge", "geqslant": "ge", "neq": "ne", "sim": "approx", "simeq": "approx",
    "approxeq": "approx", "varnothing": "emptyset", "infin": "infty", "degree": "circ", "ast": "times", "lbrace": "{",
    "rbrace": "}", "varphi": "phi", "varepsilon": "epsilon", "tg": "tan", "dots": "ldots", "cdots": "ldots", "dotsc": "ldots", "dotsb": "ldots",
}  # fmt: skip
NO_COMMANDS = {
    **dict.fromkeys(("and", "land", "wedge", "&"), (TEXT, "and")),
    **dict.fromkeys(("or", "lor", "vee"), (TEXT, "or")),
    **dict.fromkeys(("vert", "lvert", "rvert", "mid", "|"), (SIGN, "|")),
    **{name: (SIGN, sign) for name, sign in (("lbrack", "["), ("rbrack", "]"), ("lt", "<"), ("gt", ">"), ("colon", ":"))},
    **{sign: (SIGN, sign) for sign in "<>:[]%"},
}
"""Commands that stand for a word or a sign."""
TEXT_COMMANDS = ("text", "textbf", "textrm", "textit", "textsf", "texttt", "mbox", "mathrm", "mathbf", "mathit", "mathsf",
                 "operatorname", "rm", "bf", "boldsymbol", "bm", "textnormal", "unit", "hbox", "emph", "textup", "mathup", "textsl", "si")  # fmt: skip
UPRIGHT = (r"\mathrm", r"\mathup", r"\rm", r"\unit", r"\si")
"""The usual type of units. A bold letter is a vector, a slanted one a variable."""
TOKEN = re.compile(
    r"(?P<space>[ ]+)"
    rf"|\\(?:{'|'.join(sorted(TEXT_COMMANDS, key=len, reverse=True))})[ ]?\{{(?P<text>(?:[^{{}}]|\^\{{-?\d\}})*)\}}"
    r"|(?P<command>\\(?:[A-Za-z]+\*?|.))"
    # Three digits behind every comma or space: thousands. Then plain decimals, and 2e-3 as in programs.
    r"|(?P<number>\d{1,3}(?:,\d{3})+(?!\d|,\d)(?:\.\d+)?|\d{1,3}(?:[ ]\d{3})+(?!\d|,\d)(?:\.\d+)?"
    r"|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+(?![\d.]))?)"
    r"|(?P<letters>[^\W\d_]+)"
    r"|(?P<sign>.)"
)
COUNTED = re.compile(
    r"[ ]*(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:[ ]?:[ ]?\d+)+|\d+(?:\.\d+)?)(?:[ ]+([^\W\d_](?:[^\d]|\^\{?-?\d\}?)*))?"
)
SET_NUMBERS = re.compile(r"(?=[^\d]*[1-9])(?:[A-Za-z][ ]?=[ ]?)?[-+(\[]*\d(?:[\d. ]|,[ ]?-?)*(?:/[1-9]\d*)?[)\]]*(?<![. ])")
"""Numbers without words, in a text command."""
ASCII_RELATIONS = {"<=": r"\le ", "=<": r"\le ", ">=": r"\ge ", "!=": r"\ne ", "<>": r"\ne ", "==": "="}
FULL_STOP = re.compile(r"(?<![.\\])\.(?=[ $*`)\]\\]*$)")
"""The full stop of a sentence, inside or outside dollar signs, but not three dots."""

TIGHT_THOUSANDS = re.compile(
    r"(?<=\d)[ ]?(?:\{[ ]?(?:\\!)*\\?,(?:\\!)*[ ]?\}(?:\\!)*|\\(?:text|textnormal|mathrm|mathord|mathpunct)[ ]?\{[ ]?,[ ]?\}"
    r"|(?:\\!)*[ ]?,[ ]?(?:\\!|\{\}|\\hspace\*?\{-[^{}]{1,9}\})+)[ ]?(?=\d{3}(?!\d))"
)
r"""1{,}234 and 1,\!234: braces, or a negative space behind the comma, show that it groups digits."""
DROPPED = re.compile(
    r"(?<!\\)\\(?:left|right|middle|therefore|displaystyle|textstyle|limits|nolimits|[bB]ig{1,2}[lrm]?)(?![A-Za-z])"
    r"|(?<!\\)\\!|(?<!\\)\\[()\[\]]|(?<!\\)\$"
    # Colour, size and weight. \bf{x} with braces is text and read as such.
    r"|(?<!\\)\\(?:(?:text)?color|colorbox)[ ]?\{[^{}]{0,40}\}|(?<!\\)\\underline(?![A-Za-z])"
    r"|(?<!\\)\\(?:tiny|small|normalsize|large|Large|LARGE|huge|Huge|bfseries|itshape)(?![A-Za-z])"
    r"|(?<!\\)\\(?:bf|it|rm|sf|tt)(?![A-Za-z]|[ ]?\{)"
)
GAPS = re.compile(r"(?<!\\)\\[,;:> ]|~|(?<!\\)\\q?quad|(?<!\\)\\(?:thin|med|thick|en)space(?![A-Za-z])|\\hspace\*?\{[^{}]*\}")
COMPARED = re.compile(r"<[ ]?=|=<|>[ ]?=|(?<![\d)!])!=|(?<=[\d)][ ])!=|<>|==")
"""Relations as programs write them. 5!=120 is a factorial; x != 5 means that x is not 5."""
Rewrites = tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...]
"""Applied in this order."""
OUTSIDE_ENVIRONMENTS: Rewrites = (
    # \\frac for \frac, in text that was escaped twice. Outside an environment a double backslash ends no row.
    (re.compile(r"(?<!\\)\\\\(?=[A-Za-z]{2}|[{}%$])"), r"\\"),
    # The & of x &= 5 outside an environment, as in \Aboxed{x &= 5}.
    (re.compile(r"(?<!\\)&(?=[ ]?(?:[=<>]|\\(?:le|ge|ne|approx|in)))"), ""),
)
EVERYWHERE: Rewrites = (
    (re.compile(r"(?<![\^{ ])[ ]?\\degree(?![A-Za-z])"), r"^\\circ "),
    (re.compile(r"^\s*(?:US|CA|AU)\s?(?=\\?\$)"), ""),
    (re.compile(r"^\s*Rs\b\.?\s?(?=\d)"), "₹"),
    (re.compile(r"(?<=[\d ])sq\.?(?=[ ][a-z])"), "square"),
    (re.compile(r"(?<=[\d ])cu\.?(?=[ ][a-z])"), "cubic"),
    (re.compile(r"(?<=[)\]])[ ]?U[ ]?(?=[(\[])"), r"\\cup "),
    (re.compile(r"\{([^{}]+)\\over(?![A-Za-z])([^{}]+)\}"), r"\\frac{\1}{\2}"),
    (re.compile(r"\{([^{}\\]+)\\choose(?![A-Za-z])([^{}\\]+)\}"), r"\\binom{\1}{\2}"),
    # A single dollar sign before a number is money; any other one delimits mathematics.
    (re.compile(r"^\s*(-?\s*)\$(?=\s*-?[\d.])([^$]*)$"), r"\1\\$\2"),
    (re.compile(r"(?<=\d)[ ]?[xX][ ]?(?=10[ ]?\^)"), r" \\times "),  # 3 x 10^5
    # A double backslash ends a row of a matrix; \\[2pt] also adds space below it.
    (re.compile(r"\\\\\[[^\[\]]{0,20}\]"), r"\\\\"),
    (re.compile(r"(?:\\(?:text|mathrm|mathbin|mathrel|mathord|mathpunct)[ ]?)?\{[ ]?:[ ]?\}"), ":"),
    (re.compile(r"(?<!\\)\\not[ ]?="), r"\\ne "),
    (COMPARED, lambda sign: ASCII_RELATIONS["".join(sign.group().split())]),
    (TIGHT_THOUSANDS, ""),
    (DROPPED, ""),
    (GAPS, " "),
    (re.compile(r"[ ]{2,}"), " "),
    (re.compile(r"\\(?:mathrm|text)[ ]?\{[ ]?\^(?:\\circ|\{\\circ\})[ ]?([CF])\}"), r"^\\circ \\text{\1}"),
    (re.compile(r"\.(?:[ ]?\.)+"), r"\\ldots "),
)


def read_tokens(text: str) -> list[Token] | None:
    """Return the answer as tokens, or None if it is too long."""
    text = FULL_STOP.sub("", spell_symbols(unify_characters(text)).rstrip())
    for pattern, replacement in EVERYWHERE if r"\begin" in text else OUTSIDE_ENVIRONMENTS + EVERYWHERE:
        text = pattern.sub(replacement, text)
    tokens: list[Token] = []
    spaced = False
    for match in TOKEN.finditer(text):
        token = make_token(match, spaced)
        spaced = token is None
        if token is not None:
            tokens += expand_text_token(token)
        if len(tokens) > MAX_TOKENS:
            return None
    return tokens


def make_token(match: re.Match[str], spaced: bool) -> Token | None:
    kind = str(match.lastgroup)
    found = match[kind]
    word = found.strip()
    if kind == "space" or (kind == TEXT and not word):
        return None
    if kind == TEXT:
        # One letter in roman type is that letter (\mathrm{e}, \mathbf{v}); several are words.
        if len(word) == 1 and word.isalpha() and not match.group().startswith((r"\text", r"\mbox", r"\hbox")):
            return Token(LETTERS, word, spaced, roman=match.group().startswith(UPRIGHT))
        if word in ("gcd", "lcm"):
            return Token(LETTERS, word, spaced)
        return Token(TEXT, "and" if word in ("&", "\\&") else " ".join(found.split()), spaced)
    if kind == COMMAND:
        name = found[1:].removesuffix("*")
        kind, found = NO_COMMANDS.get(name) or (COMMAND, SAME_COMMANDS.get(name, name))
    if kind == LETTERS and found.lower() in ("infinity", "oo", "inf"):
        return Token(COMMAND, "infty", spaced)
    return Token(kind, found, spaced)


def expand_text_token(token: Token) -> list[Token]:
    r"""Split \text{12 apples}, \text{9:30 pm}, \text{x = 5} and \text{(1, 2)} into tokens. Other tokens stay as they are."""
    if token.kind != TEXT:
        return [token]
    if SET_NUMBERS.fullmatch(token.text):
        return read_tokens(token.text) or []
    counted = COUNTED.fullmatch(token.text)
    if counted is None:
        return [token]
    first, *others = (Token(NUMBER, part) for part in re.split("[ ]?:[ ]?", counted[1]))
    numbers = [replace(first, spaced=token.spaced), *(part for other in others for part in (Token(SIGN, ":"), other))]
    return [*numbers, *([Token(TEXT, counted[2], True)] if counted[2] else [])]


# ---------------------------------------------------------------------------------------------------------------------
# Brackets and pieces
# ---------------------------------------------------------------------------------------------------------------------

DEPTH = {
    **dict.fromkeys(("(", "[", "{", r"\{", r"\langle", r"\begin", r"\lfloor", r"\lceil"), 1),
    **dict.fromkeys((")", "]", "}", r"\}", r"\rangle", r"\end", r"\rfloor", r"\rceil"), -1),
}
"""Change of the nesting depth at a token."""


def find_top(tokens: Sequence[Token], is_wanted: Callable[[Token], bool]) -> list[int]:
    """Return the positions of the wanted tokens outside all brackets."""
    places, depth = [], 0
    for place, token in enumerate(tokens):
        depth += DEPTH.get(token.latex, 0)
        if depth == 0 and is_wanted(token):
            places.append(place)
    return places


def find_closing(tokens: Sequence[Token], start: int) -> int:
    """Return the position of the bracket that closes the one at `start`, or -1."""
    depth = 0
    for place in range(start, len(tokens)):
        depth += DEPTH.get(tokens[place].latex, 0)
        if depth == 0:
            return place
    return -1


def split_at(tokens: list[Token], places: Sequence[int]) -> list[list[Token]]:
    return [tokens[start + 1 : end] for start, end in pairwise([-1, *places, len(tokens)])]


def split_by(tokens: list[Token], *signs: str) -> list[list[Token]]:
    """Split at the signs outside all brackets."""
    return split_at(tokens, find_top(tokens, lambda token: token.latex in signs))


def split_thousands(tokens: Sequence[Token]) -> list[Token]:
    """Return the tokens with 1,234 split into two numbers and a comma."""
    result: list[Token] = []
    for token in tokens:
        first, *others = token.text.split(",") if token.kind == NUMBER else [token.text]
        result.append(replace(token, text=first) if others else token)
        result += [part for digits in others for part in (Token(SIGN, ","), Token(NUMBER, digits))]
    return result


def write_latex(tokens: Sequence[Token]) -> str:
    """Write the tokens as LaTeX again, for other readers."""
    parts = []
    for token in tokens:
        end = " " if token.kind == COMMAND and token.text[-1:].isalpha() else ""
        parts.append((" " if token.spaced else "") + token.latex + end)
    return "".join(parts).strip()


def list_texts(tokens: Sequence[Token]) -> list[str]:
    """Return the text of every token except braces."""
    return [token.text for token in tokens if token.text not in ("{", "}", "")]
