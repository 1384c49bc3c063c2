"""Brackets among the tokens of an answer: how deep each token lies, where a bracket closes, and the pieces between."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from cohort.rewards.math.text import COMMAND, NUMBER, SIGN, TEXT, Token

OPENING, CLOSING = {"(", "[", "{"}, {")", "]", "}"}


def is_sign(token: Token, text: str) -> bool:
    return token.kind == SIGN and token.text == text


def step(token: Token) -> int:
    """How much deeper a token leads."""
    if token.kind == SIGN:
        return (token.text in OPENING) - (token.text in CLOSING)
    if token.kind == COMMAND:
        return (token.text in ("{", "langle", "begin", "lfloor", "lceil")) - (
            token.text in ("}", "rangle", "end", "rfloor", "rceil")
        )
    return 0


def levels(tokens: Sequence[Token]) -> list[int]:
    """The depth of each token; brackets themselves are one deeper than what is around them."""
    found, level = [], 0
    for token in tokens:
        change = step(token)
        level += max(change, 0)
        found.append(level)
        level += min(change, 0)
    return found


def closes_at(tokens: Sequence[Token], start: int) -> int:
    """Where the bracket at `start` closes; -1 if nowhere."""
    level = 0
    for place in range(start, len(tokens)):
        level += step(tokens[place])
        if level == 0:
            return place
    return -1


def split_at(tokens: list[Token], places: Sequence[int]) -> list[list[Token]]:
    edges = [-1, *places, len(tokens)]
    return [tokens[start + 1 : end] for start, end in pairwise(edges)]


def ungrouped(tokens: Sequence[Token]) -> list[Token]:
    """1,234 as two numbers and a comma."""
    result: list[Token] = []
    for token in tokens:
        if token.kind != NUMBER or "," not in token.text:
            result.append(token)
            continue
        for place, digits in enumerate(token.text.split(",")):
            result += [Token(SIGN, ",")] if place else []
            result.append(Token(NUMBER, digits, token.spaced and not place))
    return result


def as_text(tokens: Sequence[Token]) -> str:
    """The tokens as LaTeX again, for readers other than ours."""
    parts = []
    for token in tokens:
        gap = " " if token.spaced else ""
        if token.kind == COMMAND:
            parts.append(f"{gap}\\{token.text}" + (" " if token.text[-1:].isalpha() else ""))
        elif token.kind == TEXT:
            parts.append(f"{gap}\\text{{{token.text}}}")
        else:
            parts.append(gap + token.text)
    return "".join(parts).strip()


def spelled(tokens: Sequence[Token]) -> list[str]:
    return [token.text for token in tokens if token.text not in ("{", "}") and token.text]
