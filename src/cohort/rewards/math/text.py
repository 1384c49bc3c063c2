r"""One spelling for what is only typography in a final answer. Nothing here knows what an answer means.

`normalise` gives a text to compare letter by letter, `spell_symbols` one of LaTeX for cohort.rewards.math.tokens. Every pattern is
linear, and texts are cut to MAX_ANSWER_CHARS before they come here.
"""

from __future__ import annotations

import re
import unicodedata

MAX_ANSWER_CHARS = 1000
"""A longer answer is compared as it stands: it is not read."""

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
    text = unify_characters(text)
    for pattern, replacement in REPLACEMENTS:
        text = pattern.sub(replacement, text)
    text = text.strip(" *`").removesuffix(".").strip(" *`")
    # A space between two words or numbers separates them ("4 5" is not 45), and so does one after a comma ("1, 234" is not
    # 1,234); any other is typography.
    return LOOSE_SPACE.sub("", text)
