r"""The text of a final answer: one spelling for what is only typography, and its tokens. Nothing here knows what an answer means.

Two forms are made. `normalise` gives a text to compare letter by letter; `read_tokens` gives tokens for cohort_verify.math.readers
and keeps what matters there: which letters were \text{}, and where spaces were (in "100, 200" the comma separates, in "100,200"
it may group digits). Every pattern is linear, and texts are cut to MAX_ANSWER_CHARS before they come here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

MAX_ANSWER_CHARS = 1000
"""A longer answer is compared as it stands: it is not read."""
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
"""Full-width forms. NFKC would do it too, and would turn 5² into 52."""
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
"""Delimiters between two digits, which are no number without them: $5$$6$."""


def unify_characters(text: str) -> str:
    """Digits of all scripts as 0-9, every kind of minus and space as one, nothing invisible. 5² stays what it is."""
    text = MET_DIGITS.sub(" ", text).translate(CHARACTERS)
    return text if text.isascii() else "".join(map(unify_character, text))


def unify_character(character: str) -> str:
    if character.isascii():
        return character
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    # Cf: zero-width and direction marks; Mn would be accents, which make another letter; FE00-FE0F choose a glyph.
    if unicodedata.category(character) == "Cf" or "\ufe00" <= character <= "\ufe0f":
        return ""
    if "\U0001d400" <= character <= "\U0001d7ff":  # letters of mathematical alphabets
        return unicodedata.normalize("NFKC", character)
    return character


def spell_symbols(text: str) -> str:
    r"""Mathematical characters as the LaTeX for them: x² as x^{2}, ½ as \frac{1}{2}, π as \pi."""
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
    """One spelling for what is only typography. Superscripts stay what they are: 5² is not 52."""
    if text.isascii() and text.isalnum():  # a plain number or word, as most answers are: there is no typography in it
        return text
    text = unify_characters(text)
    for pattern, replacement in REPLACEMENTS:
        text = pattern.sub(replacement, text)
    text = text.strip(" *`").removesuffix(".").strip(" *`")
    # A space between two words or numbers separates them ("4 5" is not 45), and so does one after a comma ("1, 234" is not
    # 1,234); any other is typography.
    return LOOSE_SPACE.sub("", text)


# ---------------------------------------------------------------------------------------------------------------------
# Tokens
# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    spaced: bool = False
    """A space stood before it."""
    roman: bool = False
    r"""A letter in upright type: \mathrm{m} may be a unit where m is a variable."""

    latex: str = field(init=False)
    r"""As LaTeX writes it, which tells the sign = from \text{=}, and the bracket ( from \(."""

    def __post_init__(self) -> None:
        marked = {COMMAND: f"\\{self.text}", TEXT: f"\\text{{{self.text}}}"}
        object.__setattr__(self, "latex", marked.get(self.kind, self.text))

    @property
    def word(self) -> str:
        r"""The letters, bare or in \text{}, without case; "" for any other token."""
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
COUNTED = re.compile(
    r"[ ]*(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:[ ]?:[ ]?\d+)+|\d+(?:\.\d+)?)(?:[ ]+([^\W\d_](?:[^\d]|\^\{?-?\d\}?)*))?"
)
SET_NUMBERS = re.compile(r"(?=[^\d]*[1-9])(?:[A-Za-z][ ]?=[ ]?)?[-+(\[]*\d(?:[\d. ]|,[ ]?-?)*(?:/[1-9]\d*)?[)\]]*(?<![. ])")
"""Numbers without words, as text."""
ASCII_RELATIONS = {"<=": r"\le ", "=<": r"\le ", ">=": r"\ge ", "!=": r"\ne ", "<>": r"\ne ", "==": "="}
FULL_STOP = re.compile(r"(?<![.\\])\.(?=[ $*`)\]\\]*$)")
"""The end of a sentence, inside or outside of dollar signs; three dots are not."""

TIGHT_THOUSANDS = re.compile(
    r"(?<=\d)[ ]?(?:\{[ ]?(?:\\!)*\\?,(?:\\!)*[ ]?\}(?:\\!)*|\\(?:text|textnormal|mathrm|mathord|mathpunct)[ ]?\{[ ]?,[ ]?\}"
    r"|(?:\\!)*[ ]?,[ ]?(?:\\!|\{\}|\\hspace\*?\{-[^{}]{1,9}\})+)[ ]?(?=\d{3}(?!\d))"
)
r"""1{,}234 and 1,\!234: braces, or a negative space behind the comma, say that it groups digits and separates nothing."""
DROPPED = re.compile(
    r"(?<!\\)\\(?:left|right|middle|therefore|displaystyle|textstyle|limits|nolimits|[bB]ig{1,2}[lrm]?)(?![A-Za-z])"
    r"|(?<!\\)\\!|(?<!\\)\\[()\[\]]|(?<!\\)\$"
    # Colour, size and weight; \bf{x} with braces is text, and read as such.
    r"|(?<!\\)\\(?:(?:text)?color|colorbox)[ ]?\{[^{}]{0,40}\}|(?<!\\)\\underline(?![A-Za-z])"
    r"|(?<!\\)\\(?:tiny|small|normalsize|large|Large|LARGE|huge|Huge|bfseries|itshape)(?![A-Za-z])"
    r"|(?<!\\)\\(?:bf|it|rm|sf|tt)(?![A-Za-z]|[ ]?\{)"
)
GAPS = re.compile(r"(?<!\\)\\[,;:> ]|~|(?<!\\)\\q?quad|(?<!\\)\\(?:thin|med|thick|en)space(?![A-Za-z])|\\hspace\*?\{[^{}]*\}")
COMPARED = re.compile(r"<[ ]?=|=<|>[ ]?=|(?<![\d)!])!=|(?<=[\d)][ ])!=|<>|==")
"""Relations as programs write them. 5!=120 is a factorial, and x != 5 says that x is not 5."""
Rewrites = tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...]
"""Applied one after the other."""
OUTSIDE_ENVIRONMENTS: Rewrites = (
    # \\frac for \frac, as text is that was escaped twice. Outside of an environment a double backslash ends no row.
    (re.compile(r"(?<!\\)\\\\(?=[A-Za-z]{2}|[{}%$])"), r"\\"),
    # The & of x &= 5, out of an environment: as in \Aboxed{x &= 5}.
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
    # A single dollar sign before a number is money, any other delimits mathematics.
    (re.compile(r"^\s*(-?\s*)\$(?=\s*-?[\d.])([^$]*)$"), r"\1\\$\2"),
    (re.compile(r"(?<=\d)[ ]?[xX][ ]?(?=10[ ]?\^)"), r" \\times "),  # 3 x 10^5
    # A double backslash ends a row of a matrix; \\[2pt] with more space below it.
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
    """The answer as tokens; None where it is too long to be meant."""
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
        # One letter in roman type is that letter (\mathrm{e}, \mathbf{v}); more are words.
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
    r"""The tokens of \text{12 apples}, \text{9:30 pm}, \text{x = 5} and \text{(1, 2)}; any other token by itself."""
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
"""How much deeper a token leads."""


def find_top(tokens: Sequence[Token], is_wanted: Callable[[Token], bool]) -> list[int]:
    """Where the wanted tokens stand that are in no brackets."""
    places, depth = [], 0
    for place, token in enumerate(tokens):
        depth += DEPTH.get(token.latex, 0)
        if depth == 0 and is_wanted(token):
            places.append(place)
    return places


def find_closing(tokens: Sequence[Token], start: int) -> int:
    """Where the bracket at `start` closes; -1 if nowhere."""
    depth = 0
    for place in range(start, len(tokens)):
        depth += DEPTH.get(tokens[place].latex, 0)
        if depth == 0:
            return place
    return -1


def split_at(tokens: list[Token], places: Sequence[int]) -> list[list[Token]]:
    return [tokens[start + 1 : end] for start, end in pairwise([-1, *places, len(tokens)])]


def split_by(tokens: list[Token], *signs: str) -> list[list[Token]]:
    """The pieces between signs that are in no brackets."""
    return split_at(tokens, find_top(tokens, lambda token: token.latex in signs))


def split_thousands(tokens: Sequence[Token]) -> list[Token]:
    """The same tokens with 1,234 as two numbers and a comma."""
    result: list[Token] = []
    for token in tokens:
        first, *others = token.text.split(",") if token.kind == NUMBER else [token.text]
        result.append(replace(token, text=first) if others else token)
        result += [part for digits in others for part in (Token(SIGN, ","), Token(NUMBER, digits))]
    return result


def write_latex(tokens: Sequence[Token]) -> str:
    """The tokens as LaTeX again, for readers other than ours."""
    parts = []
    for token in tokens:
        end = " " if token.kind == COMMAND and token.text[-1:].isalpha() else ""
        parts.append((" " if token.spaced else "") + token.latex + end)
    return "".join(parts).strip()


def list_texts(tokens: Sequence[Token]) -> list[str]:
    """The text of every token that is no brace."""
    return [token.text for token in tokens if token.text not in ("{", "}", "")]
