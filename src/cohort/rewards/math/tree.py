r"""Expressions as trees: \frac{\sqrt{3}}{2}, 2^{10}, \sin 2x, 3x^2 - 1. Read whole or not at all, and bounded throughout.

A reader of our own and not a parser made for papers, because a verdict hangs on it: whatever it does not understand to the
last token is refused, instead of being read in part ("4 sqrt(2)" as 4). Reading, the exact value of a rational expression
and the bound on its size are safe in the trainer: depth, tokens and digits are limited before anything is computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from cohort.rewards.math.text import COMMAND, LETTERS, NUMBER, SIGN, Token

MAX_DEPTH = 30
MAX_NUMBER_CHARS = 400
MAX_EXPONENT = 400
"""Of a decimal written 1e400."""
MAX_BITS = 6000
"""Of an exact number computed in the trainer: about 1,800 digits, microseconds."""
MAX_EXPONENT_BITS = 512
"""Of the size of an exponent, anywhere: above it a number has more digits than there are atoms, and only bombs need that."""
MAX_FACTORIAL_BITS = 60
MAX_ANGLE_BITS = 3000
MAX_SPAN_BITS = 16_000
"""Of terms in a sum: telling 10^4000 + 1 from 10^4000 takes 4,000 digits."""


class Unreadable(Exception):
    """Not an expression this reader knows. Another may be asked."""


class Refused(Exception):
    """Too deep, too long or too large for anyone to mean it: nobody else is asked either."""


@dataclass(frozen=True)
class Node:
    op: str
    """number, symbol, constant, add, multiply, divide, power, negate, root, factorial, binomial, absolute, log, or a function."""
    args: tuple[Node, ...] = ()
    number: Fraction | None = None
    name: str = ""


FUNCTIONS = ("sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "ln", "exp")
ANGLES = ("sin", "cos", "tan", "cot", "sec", "csc")
INVERSES = {"sin": "arcsin", "cos": "arccos", "tan": "arctan"}
GREEK = (
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu", "xi", "rho",
    "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega", "Gamma", "Delta", "Theta", "Lambda", "Xi", "Phi", "Psi", "Omega",
    "ell", "hbar",
)  # fmt: skip
TIMES = {(SIGN, "*"), (COMMAND, "cdot"), (COMMAND, "times")}
DIVIDE = {(SIGN, "/"), (COMMAND, "div")}
MARKS = ("vec", "hat", "bar", "tilde", "overline", "mathcal", "mathfrak", "mathbb")
WORDS_NOT_VARIABLES = frozenset({
    "mod", "and", "not", "for", "gcd", "lcm", "max", "min", "det", "dim", "lim", "deg", "sup", "inf", "or", "is", "to", "of", "in",
    "if", "as", "at", "by", "no", "on", "we",
})  # fmt: skip


def number(value: int | Fraction) -> Node:
    return Node("number", number=Fraction(value))


def read_expression(tokens: Sequence[Token]) -> Node:
    reader = Reader(tokens)
    node = reader.sum(0)
    if reader.place < len(tokens):
        raise Unreadable(f"{tokens[reader.place].text!r} is not understood there")
    return node


class Reader:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens, self.place = tokens, 0
        self.bars = 0

    def peek(self, ahead: int = 0) -> tuple[str, str]:
        here = self.place + ahead
        return (self.tokens[here].kind, self.tokens[here].text) if here < len(self.tokens) else ("end", "")

    def take(self) -> Token:
        if self.place >= len(self.tokens):
            raise Unreadable("it ends too early")
        self.place += 1
        return self.tokens[self.place - 1]

    def expect(self, kind: str, text: str) -> None:
        if self.peek() != (kind, text):
            raise Unreadable(f"{text!r} is missing")
        self.place += 1

    # -----------------------------------------------------------------------------------------------------------------

    def sum(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise Refused("it is nested too deep")
        terms: list[Node] = []
        sign = self.signs()
        while True:
            term = self.product(depth)
            terms.append(Node("negate", (term,)) if sign < 0 else term)
            if self.peek() not in ((SIGN, "+"), (SIGN, "-")):
                return terms[0] if len(terms) == 1 else Node("add", tuple(terms))
            sign = self.signs()

    def signs(self) -> int:
        sign = 1
        while self.peek() in ((SIGN, "+"), (SIGN, "-")):
            sign = -sign if self.take().text == "-" else sign
        return sign

    def product(self, depth: int) -> Node:
        """Left to right, so that 1/2x is (1/2)x; factors side by side multiply. Flat, so that long products are not deep."""
        above, below = [self.factor(depth)], []
        while True:
            if self.peek() in TIMES:
                self.place += 1
                above.append(self.signed_factor(depth))
            elif self.peek() in DIVIDE:
                self.place += 1
                below.append(self.signed_factor(depth))
            elif not self.starts_factor():
                break
            elif self.peek()[0] == NUMBER and self.tokens[self.place - 1].kind == NUMBER:
                if below or len(above) > 1:
                    raise Unreadable("two numbers side by side")
                above[0] = self.mixed_number(above[0])
            else:
                above.append(self.factor(depth))
        top = product_of(above)
        return Node("divide", (top, product_of(below))) if below else top

    def signed_factor(self, depth: int) -> Node:
        sign = self.signs()
        factor = self.factor(depth)
        return Node("negate", (factor,)) if sign < 0 else factor

    def mixed_number(self, whole: Node) -> Node:
        top, slash, bottom = self.peek(), self.peek(1), self.peek(2)
        if slash != (SIGN, "/") or not (top[1].isdecimal() and bottom[1].isdecimal()) or whole.op != "number":
            raise Unreadable("two numbers side by side")
        self.place += 3
        return mixed(whole, integer(top[1]), integer(bottom[1]))

    def starts_factor(self) -> bool:
        kind, text = self.peek()
        if kind in (NUMBER, LETTERS):
            return True
        if kind == SIGN:
            return text in ("(", "{", "[") or (text == "|" and not self.bars)
        return kind == COMMAND and (
            text in ("frac", "sqrt", "binom", "pi", "infty", "lfloor", "lceil", "log", "lg", *FUNCTIONS, *GREEK, *MARKS)
        )

    def factor(self, depth: int) -> Node:
        base = self.atom(depth)
        while True:
            if self.peek() == (SIGN, "!"):
                self.place += 1
                if self.peek() == (SIGN, "!"):
                    raise Unreadable("a double factorial")
                base = Node("factorial", (base,))
            elif self.peek() == (SIGN, "^"):
                self.place += 1
                if self.is_degrees():
                    if base.op == "multiply":
                        raise Unreadable("degrees of degrees")
                    base = Node("multiply", (base, Node("divide", (Node("constant", name="pi"), number(180)))))
                else:
                    base = Node("power", (base, self.exponent(depth)))
            else:
                return base

    def is_degrees(self) -> bool:
        if self.peek() == (COMMAND, "circ"):
            self.place += 1
            return True
        if [self.peek(ahead) for ahead in range(3)] == [(SIGN, "{"), (COMMAND, "circ"), (SIGN, "}")]:
            self.place += 3
            return True
        return False

    def exponent(self, depth: int) -> Node:
        sign = self.signs()
        inner = self.atom(depth + 1)
        if self.peek() == (SIGN, "^"):  # 2^3^4 without braces is 2^(3^4), as in Python
            self.place += 1
            inner = Node("power", (inner, self.exponent(depth + 1)))
        return Node("negate", (inner,)) if sign < 0 else inner

    def group(self, depth: int) -> Node:
        r"""The argument of \frac or \sqrt: a group in braces, or a single token (of a number, its first digit)."""
        kind, text = self.peek()
        if (kind, text) == (SIGN, "{"):
            self.place += 1
            inner = self.sum(depth + 1)
            self.expect(SIGN, "}")
            return inner
        if kind == NUMBER and text.isdecimal() and len(text) > 1:
            token = self.tokens[self.place]
            self.tokens = [
                *self.tokens[: self.place],
                Token(NUMBER, text[0]),
                Token(NUMBER, text[1:]),
                *self.tokens[self.place + 1 :],
            ]
            self.place += 1
            return decimal_node(token.text[0])
        return self.atom(depth + 1)

    # -----------------------------------------------------------------------------------------------------------------

    def atom(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise Refused("it is nested too deep")
        token = self.take()
        if token.kind == NUMBER:
            return self.number(token)
        if token.kind == LETTERS:
            return self.letters(token, depth)
        if token.kind == SIGN and token.text in "([{":
            return self.inside(depth, {"(": ")", "[": "]", "{": "}"}[token.text])
        if token.kind == SIGN and token.text == "|":
            self.bars += 1
            inner = self.sum(depth + 1)
            self.bars -= 1
            self.expect(SIGN, "|")
            return Node("absolute", (inner,))
        if token.kind == COMMAND:
            return self.command(token.text, depth)
        raise Unreadable(f"{token.text!r} is not understood there")

    def inside(self, depth: int, closing: str) -> Node:
        bars, self.bars = self.bars, 0
        inner = self.sum(depth + 1)
        self.bars = bars
        self.expect(SIGN, closing)
        return inner

    def number(self, token: Token) -> Node:
        whole = decimal_node(token.text)
        previous = self.tokens[self.place - 2] if self.place > 1 else None
        raised = previous is not None and previous.kind == SIGN and previous.text in ("^", "_")
        if self.peek() in ((COMMAND, "overline"), (COMMAND, "dot")) and "." in token.text:
            return self.repeating(token.text)
        if self.peek() == (SIGN, "_"):
            raise Unreadable("a number in another base")
        if self.peek() == (COMMAND, "frac") and token.text.isdecimal() and not raised:
            return self.maybe_mixed(whole)
        return whole

    def maybe_mixed(self, whole: Node) -> Node:
        r"""2\frac{1}{3} is 2 + 1/3 where the fraction is a proper one of whole numbers; else a product."""
        start = self.place
        self.place += 1
        parts = (self.group(0), self.group(0))
        top, bottom = (part.number for part in parts)
        if top is not None and bottom is not None and top.denominator == bottom.denominator == 1 and 0 < top < bottom:
            return mixed(whole, int(top), int(bottom))
        self.place = start
        return whole

    def repeating(self, start: str) -> Node:
        r"""0.1\overline{6}, 0.1\dot{6}; a dot is over one digit."""
        dotted = self.take().text == "dot"
        self.expect(SIGN, "{")
        period = self.take().text
        self.expect(SIGN, "}")
        if not period.isdecimal() or len(period) > (1 if dotted else 50):
            raise Unreadable("a repeating decimal without digits")
        head, places = decimal_value(start), len(start.partition(".")[2])
        return number(head + Fraction(int(period), (10 ** len(period) - 1) * 10**places))

    def letters(self, token: Token, depth: int) -> Node:
        name = token.text
        if name == "sqrt":
            return Node("root", (self.group(depth), number(2)))
        if name in FUNCTIONS or name in ("log", "lg"):
            return self.function(name, depth)
        if name == "pi":
            return Node("constant", name="pi")
        if name in ("gcd", "lcm"):
            return self.divisor_or_multiple(name)
        if len(name) == 1:
            return self.symbol(name)
        self.check_product(token)
        # The last letter takes what follows (an index, an exponent), so it is put back as a token of its own.
        self.tokens = [*self.tokens[: self.place - 1], *(Token(LETTERS, letter) for letter in name), *self.tokens[self.place :]]
        self.place -= 1
        return self.atom(depth)

    def check_product(self, token: Token) -> None:
        """Two letters are a product; more are words, unless they are in order (xyz) or stand tight behind something."""
        tight = self.place > 1 and not token.spaced
        ordered = list(token.text) == sorted(set(token.text))
        if token.text in WORDS_NOT_VARIABLES or len(token.text) > 4 or (len(token.text) > 2 and not (tight or ordered)):
            raise Unreadable(f"words: {token.text!r}")

    def symbol(self, name: str) -> Node:
        if self.peek() == (SIGN, "_"):
            self.place += 1
            name += "_" + self.index()
        if self.peek() == (SIGN, "'"):
            raise Unreadable("a derivative")
        if name in ("e", "i"):
            return Node("constant", name=name)
        return Node("symbol", name=name)

    def index(self) -> str:
        token = self.take()
        if (token.kind, token.text) != (SIGN, "{"):
            return token.text
        parts: list[str] = []
        while (part := self.take()).text != "}":
            if part.text == "{" or len(parts) > 8:
                raise Unreadable("a long index")
            parts.append(part.text)
        return "".join(parts)

    def command(self, name: str, depth: int) -> Node:
        if name == "frac":
            top, bottom = self.group(depth), self.group(depth)
            if begins_with_d(top) and begins_with_d(bottom):
                raise Unreadable("a derivative")
            return Node("divide", (top, bottom))
        if name == "binom":
            return Node("binomial", (self.group(depth), self.group(depth)))
        if name == "sqrt":
            degree = number(2)
            if self.peek() == (SIGN, "["):
                self.place += 1
                degree = self.inside(depth, "]")
            return Node("root", (self.group(depth), degree))
        if name in ("pi", "infty"):
            return Node("constant", name=name)
        if name in ("gcd", "lcm"):
            return self.divisor_or_multiple(name)
        if name in FUNCTIONS or name in ("log", "lg"):
            return self.function(name, depth)
        if name in ("lfloor", "lceil"):
            inner = self.sum(depth + 1)
            self.expect(COMMAND, "r" + name[1:])
            return Node(name[1:], (inner,))
        if name in GREEK:
            return self.symbol("\\" + name)
        if name in MARKS:
            return self.symbol(f"\\{name} {self.marked()}")
        raise Unreadable(f"\\{name} is not understood")

    def divisor_or_multiple(self, name: str) -> Node:
        r"""\gcd(12, 18) of whole numbers, by value."""
        self.expect(SIGN, "(")
        parts: list[str] = []
        while (token := self.take()).text != ")":
            parts.append(token.text)
            if len(parts) > 20:
                raise Unreadable("a list of very many numbers")
        numbers = "".join(parts).split(",")  # inside, every comma separates
        if len(numbers) < 2 or not all(part.isdecimal() and part.isascii() for part in numbers):
            raise Unreadable(f"{name} of what are not numbers")
        return number((math.gcd if name == "gcd" else math.lcm)(*map(integer, numbers)))

    def marked(self) -> str:
        if self.peek() == (SIGN, "{"):
            self.place += 1
            inner = self.take()
            self.expect(SIGN, "}")
        else:
            inner = self.take()
        if inner.kind not in (LETTERS, NUMBER) or len(inner.text) > 4:
            raise Unreadable("a mark over more than a letter")
        return inner.text

    def function(self, name: str, depth: int) -> Node:
        base: Node | None = None
        power: Node | None = None
        for _ in range(2):
            if self.peek() == (SIGN, "_") and name == "log" and base is None:
                self.place += 1
                base = self.group(depth)
            elif self.peek() == (SIGN, "^") and power is None:
                self.place += 1
                power = self.exponent(depth)
        argument = self.argument(depth)
        if name == "lg":
            name, base = "log", number(10)
        if power is not None and exact(power) == -1 and name in INVERSES:
            name, power = INVERSES[name], None
        args = (argument,) if base is None else (argument, base)
        node = Node(name, args)
        return node if power is None else Node("power", (node, power))

    def argument(self, depth: int) -> Node:
        r"""Of a function: a group, or factors side by side up to the next sign, function or parenthesis (\sin 2x \cos x)."""
        if self.peek() in ((SIGN, "("), (SIGN, "{"), (SIGN, "["), (SIGN, "|")):
            return self.atom(depth + 1)
        factors = [self.factor(depth + 1)]
        while self.starts_factor():
            kind, text = self.peek()
            if (kind == SIGN) or text in FUNCTIONS or text in ("log", "lg"):
                break
            if kind == NUMBER and self.tokens[self.place - 1].kind == NUMBER:
                raise Unreadable("two numbers side by side")
            factors.append(self.factor(depth + 1))
        return product_of(factors)


def product_of(factors: Sequence[Node]) -> Node:
    return factors[0] if len(factors) == 1 else Node("multiply", tuple(factors))


def begins_with_d(node: Node) -> bool:
    r"""d, dx or d^2 as in \frac{d^2}{dx^2}, which is no quotient."""
    first = node.args[0] if node.op in ("multiply", "power") else node
    return first.op == "symbol" and first.name == "d"


def mixed(whole: Node, top: int, bottom: int) -> Node:
    if bottom == 0:
        raise Unreadable("a fraction of nothing")
    return number((whole.number or Fraction(0)) + Fraction(top, bottom))


def decimal_node(text: str) -> Node:
    return number(decimal_value(text))


def integer(text: str) -> int:
    if len(text) > MAX_NUMBER_CHARS:
        raise Refused("a number of very many digits")
    return int(text)


def decimal_value(text: str) -> Fraction:
    """12, 1,234.50, .5 and 2e-3; bounded, so that 1e999999999 costs nothing."""
    if len(text) > MAX_NUMBER_CHARS:
        raise Refused("a number of very many digits")
    mantissa, _, exponent = text.replace(",", "").replace(" ", "").lower().partition("e")
    whole, _, decimals = mantissa.partition(".")
    if len(exponent) > 6 or abs(power := int(exponent or 0) - len(decimals)) > MAX_EXPONENT:
        raise Refused("a number of very many digits")
    digits = int(whole + decimals)
    return Fraction(digits * 10**power) if power >= 0 else Fraction(digits, 10**-power)


# ---------------------------------------------------------------------------------------------------------------------
# Values and bounds
# ---------------------------------------------------------------------------------------------------------------------


def exact(node: Node) -> Fraction | None:
    """The value of a rational expression; None where there is none, or it is not rational, or longer than MAX_BITS."""
    if node.op == "number":
        return node.number
    values = [exact(arg) for arg in node.args]
    if not values or any(value is None or size(value) > MAX_BITS for value in values):
        return None
    result = exact_step(node.op, [value for value in values if value is not None])
    return result if result is not None and size(result) <= MAX_BITS else None


def size(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def exact_step(op: str, values: Sequence[Fraction]) -> Fraction | None:
    match op, values:
        case "add", _:
            return sum(values, Fraction(0)) if sum(map(size, values)) <= 4 * MAX_BITS else None
        case "multiply", _:
            return math.prod(values, start=Fraction(1)) if sum(map(size, values)) <= 4 * MAX_BITS else None
        case "divide", [left, right]:
            return left / right if right else None
        case "negate", [inner]:
            return -inner
        case "absolute", [inner]:
            return abs(inner)
        case "floor", [inner]:
            return Fraction(math.floor(inner))
        case "ceil", [inner]:
            return Fraction(math.ceil(inner))
        case "power", [base, exponent]:
            return exact_power(base, exponent)
        case "root", [inner, degree]:
            return exact_root(inner, degree)
        case "factorial", [inner]:
            return Fraction(math.factorial(int(inner))) if inner.denominator == 1 and 0 <= inner <= 500 else None
        case "binomial", [top, bottom]:
            if top.denominator == bottom.denominator == 1 and 0 <= top <= 1000 and bottom >= 0:
                return Fraction(math.comb(int(top), int(bottom))) if bottom <= 1000 else Fraction(0)
    return None


def exact_power(base: Fraction, exponent: Fraction) -> Fraction | None:
    if exponent.denominator != 1:
        root = exact_root(base, Fraction(exponent.denominator))
        return None if root is None else exact_power(root, Fraction(exponent.numerator))
    if abs(base) == 1 or base == 0:
        power = int(exponent) % 2 if abs(base) == 1 else int(exponent)
        return base**power if power > 0 or base else None  # 0^0 is not a number here
    if abs(exponent) * size(base) > 2 * MAX_BITS:
        return None
    return base ** int(exponent)


def exact_root(inner: Fraction, degree: Fraction) -> Fraction | None:
    """Of perfect squares and the like. A root of a negative number has no one value here."""
    if degree.denominator != 1 or not 2 <= degree <= 20 or inner < 0:
        return None
    roots = [integer_root(part, int(degree)) for part in (inner.numerator, inner.denominator)]
    return None if roots[0] is None or roots[1] is None else Fraction(roots[0], roots[1])


def integer_root(value: int, degree: int) -> int | None:
    low, high = 0, 1 << (value.bit_length() // degree + 1)
    while low < high:
        middle = (low + high) // 2
        if middle**degree < value:
            low = middle + 1
        else:
            high = middle
    return low if low**degree == value else None


def check_size(node: Node) -> float:
    """Refuse what has no size a person would write: towers of powers, factorials of factorials. Returns the largest span."""
    spans = [0.0]
    if not math.isfinite(bits(node, spans)):
        raise Refused("a number too large to be meant")
    limit_bits(max(spans), MAX_SPAN_BITS)
    return max(spans)


def bits(node: Node, spans: list[float]) -> float:
    """A bound on the absolute logarithm to base 2 of the value; symbols count as small numbers.

    `spans` collects the sizes of what is added or put into a function: there a small part beside a large one can be lost,
    so a comparison needs that many binary digits more.
    """
    if node.op == "number":
        value = node.number or Fraction(1)
        return max(math.log2(abs(value.numerator) or 1), math.log2(value.denominator))
    if node.op in ("symbol", "constant"):
        return 4.0
    inner = [bits(arg, spans) for arg in node.args]
    if node.op == "power":
        exponent = exact(node.args[1])
        if exponent is None or abs(exponent) > 2**64:
            limit_bits(inner[1], MAX_EXPONENT_BITS)
            factor = 2.0 ** inner[1]
        else:
            factor = float(abs(exponent))
        return inner[0] * factor if inner[0] < 1e150 else math.inf
    if node.op in ("multiply", "divide"):
        return sum(inner)
    if node.op in ("negate", "absolute", "root"):
        return inner[0]
    spans += inner
    if node.op == "add":
        return max(inner) + math.log2(len(inner))
    if node.op in ("exp", "sinh", "cosh", "tanh"):
        limit_bits(inner[0], MAX_EXPONENT_BITS)
        return 2.0 ** inner[0] * 2
    if node.op in ("factorial", "binomial"):
        limit_bits(max(inner), MAX_FACTORIAL_BITS)
        return 2.0 ** inner[0] * (inner[0] + 1) + 64
    if node.op in (*ANGLES, "floor", "ceil"):
        limit_bits(inner[0], MAX_ANGLE_BITS)
    return max(inner) + 16


def limit_bits(found: float, most: float) -> None:
    if found > most:
        raise Refused("a number too large to be meant")


def symbols(node: Node) -> frozenset[str]:
    if node.op == "symbol":
        return frozenset([node.name])
    return frozenset().union(*(symbols(arg) for arg in node.args)) if node.args else frozenset()


def has(node: Node, op: str, arguments: int | None = None) -> bool:
    here = node.op == op and (arguments is None or len(node.args) == arguments)
    return here or any(has(arg, op, arguments) for arg in node.args)
