"""What may be handed to another reader where ours gives up: sums, integrals, limits; no sentences and no bombs."""

from __future__ import annotations

from collections.abc import Sequence

from cohort.rewards.math.quantities import MATH_WORDS
from cohort.rewards.math.text import COMMAND, LETTERS, NUMBER, TEXT, Token
from cohort.rewards.math.tree import FUNCTIONS, GREEK, MARKS

MAX_OTHERS_TOKENS = 150
MAX_OTHERS_DIGITS = 6


def unfit_for_others(tokens: Sequence[Token], problem: str) -> str:
    """Why another reader is not asked, "" if it is: sentences are no mathematics, and towers of numbers are bombs."""
    if len(tokens) > MAX_OTHERS_TOKENS:
        return "it is long, and not understood: " + problem
    if any(
        token.kind == TEXT or (token.kind == LETTERS and len(token.text) > 2 and token.text not in MATH_WORDS)
        for token in tokens
    ):
        return "there are words in it: " + problem
    signs = [token.text for token in tokens if token.text not in ("{", "(")]
    if any(left.isdecimal() and signs[place + 1 : place + 4 : 2] == ["^", "^"] for place, left in enumerate(signs)):
        return "a tower of powers"
    if any(token.kind == NUMBER and len(token.text) > MAX_OTHERS_DIGITS for token in tokens):
        return "a long number in what is not understood: " + problem
    commands = {token.text for token in tokens if token.kind == COMMAND}
    # What hides or strikes out (\phantom, \cancel) is dropped by some readers: only mathematics is handed on.
    return "" if commands and commands <= FOR_OTHERS else problem


FOR_OTHERS = frozenset({
    "sum", "prod", "int", "iint", "iiint", "oint", "lim", "to", "rightarrow", "infty", "frac", "over", "sqrt", "binom", "choose", "partial",
    "cdot", "times", "div", "pi", "log", "lg", "max", "min", "sup", "inf", "det", "lfloor", "rfloor", "lceil", "rceil", "circ", "prime",
    "arccot", "coth", *FUNCTIONS, *GREEK, *MARKS,
})  # fmt: skip
