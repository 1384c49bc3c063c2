"""Expressions in numbers, operators and named functions, read without running anything. Written for untrusted text.

What a grammar lets through can be handed to a parser that executes text: there is no attribute, quote, bracket, comma,
underscore or unknown name in it. Length, nesting, digits and exponents are bounded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction


class AnswerRefused(Exception):
    """The verifier does not get to see the answer: `verdict` is "unparsed" or "wrong"."""

    def __init__(self, verdict: str, detail: str) -> None:
        super().__init__(detail)
        self.verdict, self.detail = verdict, detail


def unparsed(expected: str) -> AnswerRefused:
    return AnswerRefused("unparsed", f"expected {expected}")


TOKEN = re.compile(r" *(?:(?P<number>[0-9]+(?:\.[0-9]+)?)|(?P<name>[A-Za-z]+)|(?P<sign>\*\*|[-+*/()]))")
MAX_NESTING = 40


@dataclass(frozen=True)
class Grammar:
    """Sums and products of numbers, and of what else is allowed. No attribute, quote, bracket, comma or underscore is."""

    names: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()
    powers: bool = False
    decimals: bool = False
    max_chars: int = 300
    max_digits: int = 6
    max_exponent: int = 200


class ArithmeticReader:
    """Recursive descent over the tokens of one expression. Its value is exact; None where it holds names or powers."""

    def __init__(self, text: str, grammar: Grammar) -> None:
        if len(text) > grammar.max_chars:
            raise unparsed(f"at most {grammar.max_chars} characters")
        self.grammar, self.tokens, self.at = grammar, split_tokens(text, grammar), 0
        self.numbers: list[Fraction] = []

    def read(self) -> Fraction | None:
        value = self.sum(0)
        if self.at < len(self.tokens):
            raise unparsed(f"an operator before {self.tokens[self.at]!r}")
        return value

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def sum(self, depth: int) -> Fraction | None:
        if depth > MAX_NESTING:
            raise unparsed(f"at most {MAX_NESTING} nested parentheses")
        value = self.product(depth)
        while self.peek() in ("+", "-"):
            sign = self.take()
            other = self.product(depth)
            value = None if value is None or other is None else value + other if sign == "+" else value - other
        return value

    def product(self, depth: int) -> Fraction | None:
        value = self.signed(depth)
        while self.peek() in ("*", "/"):
            sign = self.take()
            other = self.signed(depth)
            if sign == "/" and other == 0:
                raise AnswerRefused("wrong", "it divides by zero")
            value = None if value is None or other is None else value * other if sign == "*" else value / other
        return value

    def signed(self, depth: int) -> Fraction | None:
        negative = False
        while self.peek() in ("+", "-"):
            negative ^= self.take() == "-"
        value = self.power(depth)
        return value if value is None or not negative else -value

    def power(self, depth: int) -> Fraction | None:
        value = self.atom(depth)
        if self.peek() != "**":
            return value
        self.take()
        while self.peek() in ("+", "-"):
            self.take()
        exponent = self.atom(depth)
        if exponent is not None and abs(exponent) > self.grammar.max_exponent:
            raise unparsed(f"exponents of at most {self.grammar.max_exponent}")
        if self.peek() == "**":
            raise unparsed("parentheses around a power of a power")
        return None

    def atom(self, depth: int) -> Fraction | None:
        token = self.take()
        if token[:1].isdigit():
            self.numbers.append(Fraction(token))
            return self.numbers[-1]
        if token in self.grammar.functions:
            if self.peek() != "(":
                raise unparsed(f"parentheses after {token}")
            self.atom(depth)
            return None
        if token in self.grammar.names:
            return None
        if token != "(":
            raise unparsed(f"a number or an expression in parentheses, not {token!r}" if token else "a complete expression")
        value = self.sum(depth + 1)
        if self.take() != ")":
            raise unparsed("a closing parenthesis")
        return value


def split_tokens(text: str, grammar: Grammar) -> list[str]:
    tokens, position, end = [], 0, len(text.rstrip(" "))
    while position < end:
        found = TOKEN.match(text, position)
        if found is None:
            raise unparsed(f"an expression without {text[position : position + 20].split(' ')[0]!r}")
        token = found[found.lastgroup or 0]
        if found.lastgroup == "name" and token not in grammar.names | grammar.functions:
            raise unparsed(f"an expression without the name {token[:20]!r}")
        if token == "**" and not grammar.powers:
            raise unparsed("an expression without powers")
        if found.lastgroup == "number":
            check_number(token, grammar)
        tokens.append(token)
        position = found.end()
    return tokens


def check_number(token: str, grammar: Grammar) -> None:
    whole, point, _ = token.partition(".")
    if point and not grammar.decimals:
        raise unparsed("whole numbers")
    if len(token) > grammar.max_digits:
        raise unparsed(f"numbers of at most {grammar.max_digits} digits")
    if len(whole) > 1 and whole.startswith("0"):
        raise unparsed("numbers without leading zeros")
