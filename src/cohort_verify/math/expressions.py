r"""Reads expressions as trees: \frac{\sqrt{3}}{2}, 2^{10}, \sin 2x, 3x^2 - 1.

An expression is read to its last token or refused, never in part ("4 sqrt(2)" as 4), because verdicts depend on it. That is why
this is not a general LaTeX parser. Safe in the trainer's process: depth, tokens and digits are limited.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from cohort_verify.math.text import COMMAND, LETTERS, NUMBER, SIGN, Token
from cohort_verify.math.tree import ANGLES, Node, OutOfBounds, find_exact, join_nodes, number

MAX_DEPTH = 30
MAX_NUMBER_CHARS = 400
MAX_EXPONENT = 400
"""Limit on the exponent of a decimal such as 1e400."""
FUNCTIONS = (*ANGLES, "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "ln", "exp")
LOGARITHMS = ("log", "lg")
INVERSES = {"sin": "arcsin", "cos": "arccos", "tan": "arctan"}
GREEK = (
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu", "xi", "rho",
    "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega", "Gamma", "Delta", "Theta", "Lambda", "Xi", "Phi", "Psi", "Omega",
    "ell", "hbar",
)  # fmt: skip
TIMES = ("*", r"\cdot", r"\times")
DIVIDE = ("/", r"\div")
BRACKETS = {"(": ")", "[": "]", "{": "}"}
MARKS = ("vec", "hat", "bar", "tilde", "overline", "mathcal", "mathfrak", "mathbb")
FACTOR_COMMANDS = frozenset({
    "frac", "sqrt", "binom", "pi", "infty", "lfloor", "lceil", *LOGARITHMS, *FUNCTIONS, *GREEK, *MARKS,
})  # fmt: skip
WORDS_NOT_VARIABLES = frozenset({
    "mod", "and", "not", "for", "gcd", "lcm", "max", "min", "det", "dim", "lim", "deg", "sup", "inf", "or", "is", "to", "of", "in",
    "if", "as", "at", "by", "no", "on", "we",
})  # fmt: skip
END = Token("end", "")


class NotUnderstood(Exception):
    """This reader does not know the expression; another may be tried."""


def read_expression(tokens: Sequence[Token]) -> Node:
    reader = ExpressionReader(tokens)
    node = reader.read_sum(0)
    if reader.following is not END:
        raise NotUnderstood(f"{reader.following.text!r} is not understood there")
    return node


class ExpressionReader:
    """A recursive-descent reader over the tokens of one expression."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens, self.place = list(tokens), 0
        self.bars = 0

    @property
    def following(self) -> Token:
        return self.tokens[self.place] if self.place < len(self.tokens) else END

    def peek(self, ahead: int = 0) -> str:
        here = self.place + ahead
        return self.tokens[here].latex if here < len(self.tokens) else ""

    def take(self) -> Token:
        if self.following is END:
            raise NotUnderstood("it is incomplete")
        self.place += 1
        return self.tokens[self.place - 1]

    def skip(self, *marks: str) -> bool:
        """Skip the marks if they come next, and return whether they did."""
        found = all(self.peek(ahead) == mark for ahead, mark in enumerate(marks))
        self.place += len(marks) * found
        return found

    def expect(self, mark: str) -> None:
        if not self.skip(mark):
            raise NotUnderstood(f"{mark.removeprefix(chr(92))!r} is missing")

    def split_following(self, pieces: Sequence[str]) -> None:
        """Split the next token into several, so that an exponent or index applies only to the last one."""
        self.tokens[self.place : self.place + 1] = [Token(self.following.kind, piece) for piece in pieces]

    # -----------------------------------------------------------------------------------------------------------------

    def read_sum(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise OutOfBounds("it is nested too deep")
        terms = [self.read_signed(self.read_product, depth)]
        while self.peek() in ("+", "-"):
            terms.append(self.read_signed(self.read_product, depth))
        return join_nodes("add", terms)

    def read_signed(self, read: Callable[[int], Node], depth: int) -> Node:
        signs = ""
        while (sign := self.peek()) in ("+", "-"):
            self.place += 1
            signs += sign
        node = read(depth)
        node = Node("negate", (node,)) if signs.count("-") % 2 else node
        return Node("add", (node,)) if len(signs) > 1 else node  # two signs are left to evaluate: --7 is not a numeral

    def read_product(self, depth: int) -> Node:
        """Read a product from left to right, so 1/2x is (1/2)x. Adjacent factors multiply. The result is flat, so long products
        are not deep.
        """
        above, below = [self.read_factor(depth)], list[Node]()
        while True:
            sign = self.peek()
            if sign in TIMES or sign in DIVIDE:
                self.place += 1
                (above if sign in TIMES else below).append(self.read_signed(self.read_factor, depth))
            elif not self.starts_factor():
                break
            elif self.is_number_by_number():
                if below or len(above) > 1:
                    raise NotUnderstood("two adjacent numbers")
                above[0] = self.read_mixed_number(above[0])
            else:
                above.append(self.read_factor(depth))
        top = join_nodes("multiply", above)
        return Node("divide", (top, join_nodes("multiply", below))) if below else top

    def is_number_by_number(self) -> bool:
        return self.following.kind == NUMBER and self.tokens[self.place - 1].kind == NUMBER

    def read_mixed_number(self, whole: Node) -> Node:
        top, bottom = self.peek(), self.peek(2)
        if self.peek(1) != "/" or not (top.isdecimal() and bottom.isdecimal()) or whole.op != "number":
            raise NotUnderstood("two adjacent numbers")
        self.place += 3
        return mix_number(whole, read_integer(top), read_integer(bottom))

    def starts_factor(self) -> bool:
        token = self.following
        if token.kind == SIGN:
            return token.text in BRACKETS or (token.text == "|" and not self.bars)
        return token.kind in (NUMBER, LETTERS) or (token.kind == COMMAND and token.text in FACTOR_COMMANDS)

    def read_factor(self, depth: int) -> Node:
        base = self.read_atom(depth)
        while True:
            if self.skip("!"):
                if self.peek() == "!":
                    raise NotUnderstood("a double factorial")
                base = Node("factorial", (base,))
            elif not self.skip("^"):
                return base
            elif self.skip(r"\circ") or self.skip("{", r"\circ", "}"):
                if base.op == "multiply":
                    raise NotUnderstood("degrees of degrees")
                base = Node("multiply", (base, Node("divide", (Node("constant", name="pi"), number(180)))))
            else:
                base = Node("power", (base, self.read_signed(self.read_exponent, depth)))

    def read_exponent(self, depth: int) -> Node:
        inner = self.read_atom(depth + 1)
        if self.skip("^"):  # 2^3^4 without braces is 2^(3^4), as in Python
            inner = Node("power", (inner, self.read_signed(self.read_exponent, depth + 1)))
        return inner

    def read_group(self, depth: int) -> Node:
        r"""Read the argument of \frac or \sqrt: a group in braces, or a single token (the first digit of a number)."""
        if self.skip("{"):
            inner = self.read_sum(depth + 1)
            self.expect("}")
            return inner
        text = self.peek()
        if self.following.kind == NUMBER and text.isdecimal() and len(text) > 1:
            self.split_following([text[0], text[1:]])
            return number(int(self.take().text))
        return self.read_atom(depth + 1)

    # -----------------------------------------------------------------------------------------------------------------

    def read_atom(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise OutOfBounds("it is nested too deep")
        token = self.take()
        if token.kind == NUMBER:
            return self.read_number(token)
        if token.kind in (LETTERS, COMMAND):
            return self.read_name(token, depth)
        if token.latex in BRACKETS:
            return self.read_inside(depth, BRACKETS[token.latex])
        if token.latex == "|":
            self.bars += 1
            inner = self.read_sum(depth + 1)
            self.bars -= 1
            self.expect("|")
            return Node("absolute", (inner,))
        raise NotUnderstood(f"{token.text!r} is not understood there")

    def read_inside(self, depth: int, closing: str) -> Node:
        bars, self.bars = self.bars, 0
        inner = self.read_sum(depth + 1)
        self.bars = bars
        self.expect(closing)
        return inner

    def read_number(self, token: Token) -> Node:
        whole = Node("number", number=read_decimal(token.text), name="decimal" if {*".eE"} & {*token.text} else "")
        is_raised = self.place > 1 and self.tokens[self.place - 2].latex in ("^", "_")
        if self.peek() in (r"\overline", r"\dot") and "." in token.text:
            return self.read_repeating(token.text)
        if self.peek() == "_":
            raise NotUnderstood("a number in another base")
        if self.peek() == r"\frac" and token.text.isdecimal() and not is_raised:
            return self.read_mixed_fraction(whole)
        return whole

    def read_mixed_fraction(self, whole: Node) -> Node:
        r"""Read 2\frac{1}{3} as 2 + 1/3 if the fraction is a proper one of whole numbers, else as a product."""
        start = self.place
        self.place += 1
        parts = (self.read_group(0), self.read_group(0))
        top, bottom = (part.number for part in parts)
        if top is not None and bottom is not None and top.denominator == bottom.denominator == 1 and 0 < top < bottom:
            return mix_number(whole, int(top), int(bottom))
        self.place = start
        return whole

    def read_repeating(self, start: str) -> Node:
        r"""Read 0.1\overline{6} or 0.1\dot{6}; a dot covers one digit."""
        most = 1 if self.take().text == "dot" else 50
        self.expect("{")
        period = self.take().text
        self.expect("}")
        if not period.isdecimal() or len(period) > most:
            raise NotUnderstood("a repeating decimal without digits")
        places = len(start.partition(".")[2])
        return number(read_decimal(start) + Fraction(int(period), (10 ** len(period) - 1) * 10**places))

    def read_name(self, token: Token, depth: int) -> Node:
        """Read a name that may be letters or a command: sqrt and \\sqrt, sin and \\sin."""
        name, is_command = token.text, token.kind == COMMAND
        if name == "sqrt":
            degree = self.read_inside(depth, "]") if is_command and self.skip("[") else number(2)
            return Node("root", (self.read_group(depth), degree))
        if name == "pi":
            return Node("constant", name=name)
        if name in ("gcd", "lcm"):
            return self.read_divisor_or_multiple(name)
        if name in FUNCTIONS or name in LOGARITHMS:
            return self.read_function(name, depth)
        return self.read_command(name, depth) if is_command else self.read_letters(token, depth)

    def read_letters(self, token: Token, depth: int) -> Node:
        """Read two letters as a product. More are words, unless they are in alphabetical order (xyz) or directly follow another
        token.
        """
        name = token.text
        if len(name) == 1:
            return self.read_symbol(name)
        is_product = (self.place > 1 and not token.spaced) or list(name) == sorted(set(name))
        if name in WORDS_NOT_VARIABLES or len(name) > 4 or (len(name) > 2 and not is_product):
            raise NotUnderstood(f"words: {name!r}")
        self.place -= 1
        self.split_following(name)
        return self.read_atom(depth)

    def read_symbol(self, name: str) -> Node:
        if self.skip("_"):
            name += "_" + self.read_index()
        if self.peek() == "'":
            raise NotUnderstood("a derivative")
        return Node("constant" if name in ("e", "i") else "symbol", name=name)

    def read_index(self) -> str:
        token = self.take()
        if token.latex != "{":
            return token.text
        parts: list[str] = []
        while (part := self.take()).text != "}":
            if part.text == "{" or len(parts) > 8:
                raise NotUnderstood("a long index")
            parts.append(part.text)
        return "".join(parts)

    def read_command(self, name: str, depth: int) -> Node:
        if name == "frac":
            top, bottom = self.read_group(depth), self.read_group(depth)
            if begins_with_d(top) and begins_with_d(bottom):
                raise NotUnderstood("a derivative")
            return Node("divide", (top, bottom))
        if name == "binom":
            return Node("binomial", (self.read_group(depth), self.read_group(depth)))
        if name == "infty":
            return Node("constant", name=name)
        if name in ("lfloor", "lceil"):
            inner = self.read_sum(depth + 1)
            self.expect(rf"\r{name[1:]}")
            return Node(name[1:], (inner,))
        if name in GREEK:
            return self.read_symbol(f"\\{name}")
        if name in MARKS:
            return self.read_symbol(f"\\{name} {self.read_marked()}")
        raise NotUnderstood(f"\\{name} is not understood")

    def read_marked(self) -> str:
        is_braced = self.skip("{")
        inner = self.take()
        if is_braced:
            self.expect("}")
        if inner.kind not in (LETTERS, NUMBER) or len(inner.text) > 4:
            raise NotUnderstood("a mark over more than a letter")
        return inner.text

    def read_divisor_or_multiple(self, name: str) -> Node:
        r"""Evaluate \gcd(12, 18) of whole numbers."""
        self.expect("(")
        parts: list[str] = []
        while (token := self.take()).text != ")":
            parts.append(token.text)
            if len(parts) > 20:
                raise NotUnderstood("the list of numbers is too long")
        numbers = "".join(parts).split(",")  # inside, every comma separates
        if len(numbers) < 2 or not all(part.isdecimal() and part.isascii() for part in numbers):
            raise NotUnderstood(f"{name} of other arguments than numbers")
        return Node("add", (number(getattr(math, name)(*map(read_integer, numbers))),))

    def read_function(self, name: str, depth: int) -> Node:
        base: Node | None = None
        power: Node | None = None
        for _ in range(2):
            if name == "log" and base is None and self.skip("_"):
                base = self.read_group(depth)
            elif power is None and self.skip("^"):
                power = self.read_signed(self.read_exponent, depth)
        argument = self.read_argument(depth)
        if name == "lg":
            name, base = "log", number(10)
        if power is not None and find_exact(power) == -1 and name in INVERSES:
            name, power = INVERSES[name], None
        node = Node(name, (argument,) if base is None else (argument, base))
        return node if power is None else Node("power", (node, power))

    def read_argument(self, depth: int) -> Node:
        r"""Read a function's argument: a group, or adjacent factors up to the next sign, function or parenthesis (\sin 2x \cos
        x).
        """
        if self.peek() in (*BRACKETS, "|"):
            return self.read_atom(depth + 1)
        factors = [self.read_factor(depth + 1)]
        while self.starts_factor() and self.following.kind != SIGN:
            if self.following.text in FUNCTIONS or self.following.text in LOGARITHMS:
                break
            if self.is_number_by_number():
                raise NotUnderstood("two adjacent numbers")
            factors.append(self.read_factor(depth + 1))
        return join_nodes("multiply", factors)


def begins_with_d(node: Node) -> bool:
    r"""Return whether the node begins with d, as in \frac{d^2}{dx^2}, which is not a quotient."""
    first = node.args[0] if node.op in ("multiply", "power") else node
    return first.op == "symbol" and first.name == "d"


def mix_number(whole: Node, top: int, bottom: int) -> Node:
    """Return a numeral if the fraction is proper and in lowest terms, else the sum, as for 95 164/2."""
    if bottom == 0:
        raise NotUnderstood("a denominator of zero")
    if 0 < top < bottom and math.gcd(top, bottom) == 1:
        return number((whole.number or Fraction(0)) + Fraction(top, bottom))
    return Node("add", (whole, Node("divide", (number(top), number(bottom)))))


def read_integer(text: str) -> int:
    if len(text) > MAX_NUMBER_CHARS:
        raise OutOfBounds("the number has too many digits")
    return int(text)


def read_decimal(text: str) -> Fraction:
    """Read 12, 1,234.50, .5 or 2e-3. Bounded, so 1e999999999 costs nothing."""
    mantissa, _, exponent = text.replace(",", "").replace(" ", "").lower().partition("e")
    whole, _, decimals = mantissa.partition(".")
    if len(text) > MAX_NUMBER_CHARS or len(exponent) > 6 or abs(power := int(exponent or 0) - len(decimals)) > MAX_EXPONENT:
        raise OutOfBounds("the number has too many digits")
    return int(whole + decimals) * Fraction(10) ** power
