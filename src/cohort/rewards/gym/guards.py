r"""The final answer of a completion, and what it must look like before a gym verifier sees it.

All of this runs in the trusted process. Some of the package's verifiers pass the answer to `eval` or to sympy's parsers. An answer
that executes code there could forge its own verdict, in a jail too. So each such task has a *grammar* of honest answers: digits,
plain lists, expressions in named functions. An answer outside it never reaches the verifier and scores 0 as "unparsed".

Other verifiers accept less than the right answer: "nan", a board of dead cells, four numbers that the puzzle did not give. A *guard*
also compares the answer with the entry; a refused answer scores 0 as "wrong".

Every pattern here matches in time linear in the text, or on text of bounded length. Nothing here executes text.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

from cohort_verify.text import find_last_box, find_last_tag, read_visible

# ---------------------------------------------------------------------------------------------------------------------
# The final answer
# ---------------------------------------------------------------------------------------------------------------------


def extract_answer(completion: str, pattern: str = "") -> str:
    r"""The final answer: the last <answer>..</answer>, else the last match of `pattern` (its first group if it has one), else the
    last \boxed{..}, else the whole text; stripped. Text inside <think> is ignored."""
    completion = read_visible(completion)
    answer = find_last_tag(completion)
    if answer is None and pattern:
        for match in re.finditer(pattern, completion, re.DOTALL):
            answer = match[1 if match.re.groups else 0] or ""
    if answer is None:
        answer = find_last_box(completion)
    return (completion if answer is None else answer).strip()


def extract_in_worker(message: Any) -> str:
    """`extract_answer` for a jailed worker: a user's pattern may never finish on a hostile text."""
    return extract_answer(str(message["completion"]), str(message["pattern"]))


# ---------------------------------------------------------------------------------------------------------------------
# Grammars
# ---------------------------------------------------------------------------------------------------------------------


class AnswerRefused(Exception):
    """The answer never reaches the verifier. `verdict` is "no_answer", "unparsed" or "wrong"."""

    def __init__(self, verdict: str, detail: str) -> None:
        super().__init__(detail)
        self.verdict, self.detail = verdict, detail


def unparsed(expected: str) -> AnswerRefused:
    return AnswerRefused("unparsed", f"expected {expected}")


TOKEN = re.compile(r" *(?:(?P<number>[0-9]+(?:\.[0-9]+)?)|(?P<name>[A-Za-z]+)|(?P<sign>\*\*|[-+*/()]))")
MAX_NESTING = 40


@dataclass(frozen=True)
class Grammar:
    """The expressions that an answer may contain: sums and products of numbers, and what the fields add.

    A permitted expression is safe for a parser that executes text: it has no attribute, quote, bracket, comma, underscore or
    unknown name. Length, nesting, digits and exponents are bounded.
    """

    names: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()
    powers: bool = False
    decimals: bool = False
    max_chars: int = 300
    max_digits: int = 6
    max_exponent: int = 200


class ArithmeticReader:
    """Recursive-descent parser of one expression. Its value is exact; None if the expression has names or powers."""

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


# ---------------------------------------------------------------------------------------------------------------------
# Guards
# ---------------------------------------------------------------------------------------------------------------------

MAX_CHARS = 100_000
"""Limit for a task without a pattern; a guard with a pattern has its own, lower limit."""


@dataclass(frozen=True)
class Guard:
    """Conditions on the answers to one task: a pattern of text or of a list, and a check against the entry."""

    grammar: str
    """The accepted answers, for messages and docs."""
    text: str = ""
    """Pattern of the whole answer."""
    items: str = ""
    """Pattern of the answer without its blanks: a list. If both patterns are given, one of them must match."""
    check: Callable[[str, Mapping[str, Any]], str] | None = None
    """Takes the answer and the entry; returns the text for the verifier, or raises AnswerRefused."""
    closes: str = ""
    """The exploit of the package's verifier that this guard prevents."""
    max_chars: int = 1000


def admit(name: str, answer: str, entry: Mapping[str, Any]) -> str:
    """The text that the task's verifier may see. Raises AnswerRefused for a fault of the answer, KeyError for one of the entry."""
    if not answer:
        raise AnswerRefused("no_answer", "the answer is empty")
    if len(answer) > MAX_CHARS:
        raise AnswerRefused("unparsed", f"the answer has more than {MAX_CHARS} characters")
    if (guard := GUARDS.get(name)) is None:
        return answer
    if guard.text or guard.items:
        if len(answer) > guard.max_chars:
            raise unparsed(f"{guard.grammar}, in at most {guard.max_chars} characters")
        in_text = guard.text and re.fullmatch(guard.text, answer)
        if not in_text and not (guard.items and re.fullmatch(guard.items, BLANKS.sub("", answer))):
            raise unparsed(guard.grammar)
    return answer if guard.check is None else guard.check(answer, entry)


# ---------------------------------------------------------------------------------------------------------------------
# Plain text and plain lists
# ---------------------------------------------------------------------------------------------------------------------

BLANKS = re.compile(r"[ \t\r\n]+")
DECIMAL = r"[+-]?[0-9]{1,40}(?:\.[0-9]{1,40})?"


def list_pattern(item: str) -> str:
    """Pattern of a list without blanks. Items have no comma or bracket outside quotes, so there is only one way to match."""
    return rf"\[(?:(?:{item})(?:,(?:{item}))*,?)?\]"


WHOLE = r"-?[0-9]{1,12}"
LETTER = "'[A-Za-z_]'|\"[A-Za-z_]\""
NUMBER_ITEM = rf"'{DECIMAL}'|\"{DECIMAL}\"|{DECIMAL}"


# ---------------------------------------------------------------------------------------------------------------------
# Expressions
# ---------------------------------------------------------------------------------------------------------------------

CIRCULAR = ("sin", "cos", "tan", "cot", "sec", "csc")
HYPERBOLIC = ("sinh", "cosh", "tanh", "coth")
FUNCTIONS = frozenset(
    {*CIRCULAR, *HYPERBOLIC, *(f"a{name}" for name in CIRCULAR + HYPERBOLIC), "exp", "log", "ln", "sqrt", "Abs"}
)
CONSTANTS = frozenset({"pi", "E"})


def check_puzzle(answer: str, entry: Mapping[str, Any], target: int | None = None) -> str:
    target = entry["metadata"]["target"] if target is None else target
    reader = ArithmeticReader(answer, Grammar())
    value = reader.read()
    if Counter(reader.numbers) != Counter(map(Fraction, entry["metadata"]["numbers"])):
        raise AnswerRefused("wrong", "it does not use each given number once")
    if value != target:
        raise AnswerRefused("wrong", f"its value is {value}, not {target}")
    return answer


def read_variables(names: list[str]) -> frozenset[str]:
    """The entry's variables: single letters that sympy does not read as constants. KeyError for any other name."""
    found = frozenset(str(name) for name in names)
    if not all(re.fullmatch(r"[a-zA-DF-HJ-MPRT-Z]", name) for name in found):
        raise KeyError(f"variables of one letter are expected, not {sorted(found)}")
    return found


def check_polynomial(answer: str, entry: Mapping[str, Any]) -> str:
    # A product that is zero has no variables; if the answer has some, the verifier finds it wrong.
    names = read_variables(entry["metadata"]["variables"])
    ArithmeticReader(answer, Grammar(names=names, powers=True, max_chars=5000, max_digits=60)).read()
    return answer


def check_antiderivative(answer: str, entry: Mapping[str, Any]) -> str:
    names = read_variables([entry["metadata"]["variable"]]) | {"C"} | CONSTANTS
    grammar = Grammar(names=names, functions=FUNCTIONS, powers=True, decimals=True, max_chars=1000, max_digits=30)
    ArithmeticReader(answer, grammar).read()
    return answer


# ---------------------------------------------------------------------------------------------------------------------
# Checks against the entry
# ---------------------------------------------------------------------------------------------------------------------


def check_coin_flip(answer: str, entry: Mapping[str, Any]) -> str:
    try:
        given, right = Fraction(answer.replace(" ", "")), Fraction(entry["answer"])
    except (ValueError, ZeroDivisionError):
        raise unparsed("a probability as a decimal or a fraction") from None
    # 5 % of a small probability still distinguishes it from zero, and allows rounding to one significant digit.
    if abs(given - right) > min(Fraction(1, 10_000), right / 20):
        raise AnswerRefused("wrong", "it is another probability")
    return answer.replace(" ", "")


def check_calendar_arithmetic(answer: str, entry: Mapping[str, Any]) -> str:
    """The package divides the error by the right number. If that is -1, for "no such day", every error raises the score."""
    if entry["answer"].startswith("-") and answer != entry["answer"]:
        raise AnswerRefused("wrong", "there is no such day")
    return answer


def check_game_of_life(answer: str, entry: Mapping[str, Any]) -> str:
    board = BLANKS.sub("", answer)
    if board != BLANKS.sub("", entry["answer"]):
        raise AnswerRefused("wrong", "a cell is wrong")
    return board


def check_game_of_life_halting(answer: str, entry: Mapping[str, Any]) -> str:
    if answer.lower() != entry["answer"].lower():
        raise AnswerRefused("wrong", "it is the other of the two")
    return answer


def check_codeio(answer: str, entry: Mapping[str, Any]) -> str:
    """The package gives partial marks for similar JSON, which long strings exploit, so only the right value passes."""
    try:
        given, right = parse_strict_json(answer), json.loads(entry["answer"])
    except (ValueError, RecursionError):
        raise unparsed("a JSON value") from None
    if not is_same_json(given, right):
        raise AnswerRefused("wrong", "it is another value")
    return str(entry["answer"])


def parse_strict_json(text: str) -> Any:
    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def is_same_json(given: Any, right: Any) -> bool:
    """Whether two JSON values are equal: 1 equals 1.0, but not true."""
    if isinstance(given, bool) or isinstance(right, bool):
        return given is right
    if isinstance(right, list) and isinstance(given, list):
        return len(given) == len(right) and all(map(is_same_json, given, right))
    if isinstance(right, dict) and isinstance(given, dict):
        return given.keys() == right.keys() and all(is_same_json(given[key], right[key]) for key in right)
    return bool(given == right)


# --- rush hour --------------------------------------------------------------------------------------------------------

SIDE = 6


def check_rush_hour(answer: str, entry: Mapping[str, Any]) -> str:
    """The package skips blocked moves, so a long list of arbitrary moves could reach the solution."""
    config = str(entry["metadata"]["board_config"])
    cars = {
        chr(ord("A") + number): [cell for cell in range(SIDE * SIDE) if config[cell] == label]
        for number, label in enumerate(sorted(set(config) - {"o", "x"}))
    }
    walls = {cell for cell in range(SIDE * SIDE) if config[cell] == "x"}
    for move in re.findall(r"[A-Z][+-][1-5]", answer):
        for _ in range(int(move[2])):
            if not move_car(cars, walls, move[0], 1 if move[1] == "+" else -1):
                raise AnswerRefused("wrong", f"{move} is blocked")
    return answer


def move_car(cars: dict[str, list[int]], walls: set[int], name: str, direction: int) -> bool:
    """Move a car by one cell; False if it is blocked."""
    if name not in cars:
        return False
    cells = cars[name]
    stride = cells[1] - cells[0]
    front = cells[-1] if direction > 0 else cells[0]
    new = front + direction * stride
    same_line = new // SIDE == front // SIDE if stride == 1 else 0 <= new < SIDE * SIDE
    if not same_line or new in walls or any(new in other for other in cars.values()):
        return False
    cars[name] = [cell + direction * stride for cell in cells]
    return True


# --- boxnet -----------------------------------------------------------------------------------------------------------

PLACE = r"\[([0-9]{1,3}\.5), ?([0-9]{1,3}\.5)\]"
AGENT = re.compile(f"Agent{PLACE}")
ACTION = re.compile(rf"move\((box_\w+), (?:square{PLACE}|(target_\w+))\)", re.ASCII)
MAX_PLANS = 500


def check_boxnet(answer: str, entry: Mapping[str, Any]) -> str:
    """The package skips impossible actions, so one sweep over the whole field would solve every problem."""
    expected = 'a list of plans such as [{"Agent[0.5, 0.5]": "move(box_red, target_red)"}]'
    try:
        plans = parse_strict_json(answer)
    except (ValueError, RecursionError):
        raise unparsed(expected) from None
    if not isinstance(plans, list) or len(plans) > MAX_PLANS:
        raise unparsed(expected)
    squares = {place: list(items) for place, items in entry["metadata"]["initial_state"].items()}
    for plan in plans:
        if not isinstance(plan, dict):
            raise unparsed(expected)
        agents = [AGENT.fullmatch(agent) for agent in plan]
        actions = [ACTION.fullmatch(action) if isinstance(action, str) else None for action in plan.values()]
        for agent, action in zip(agents, actions, strict=True):
            if agent is None or action is None:
                raise unparsed(expected)
            if not move_box(squares, f"{agent[1]}_{agent[2]}", action):
                raise AnswerRefused("wrong", f"{agent[0]} cannot {action[0]}"[:200])
    return answer


def move_box(squares: dict[str, list[str]], place: str, action: re.Match[str]) -> bool:
    box, row, column, target = action.groups()
    items = squares.get(place)
    if items is None or box not in items:
        return False
    if target is not None:
        if target not in items or target.removeprefix("target_") != box.removeprefix("box_"):
            return False
        items.remove(target)
    else:
        here = [float(part) for part in place.split("_")]
        if abs(here[0] - float(row)) + abs(here[1] - float(column)) != 1 or f"{row}_{column}" not in squares:
            return False
        squares[f"{row}_{column}"].append(box)
    items.remove(box)
    return True


# ---------------------------------------------------------------------------------------------------------------------
# The table
# ---------------------------------------------------------------------------------------------------------------------

ADVANCED = rf"\(? ?{DECIMAL} ?(?:, ?{DECIMAL} ?)?\)? ?°?"
WORDS = r"(?:[A-Za-z0-9 ,$€£%:+-]|\.(?![A-Za-z]))+"
PROBABILITY = r"[0-9]{0,12}(?:\.[0-9]{0,30})?(?:[eE]-?[0-9]{1,2})?|[0-9]{1,12} ?/ ?[0-9]{1,12}"
CUBE_MOVES = r"[UDLRFBMESXYZ]w?'?[1-3]?(?:[ \n]+[UDLRFBMESXYZ]w?'?[1-3]?)*"
CAR_MOVES = r"[A-Z][+-][1-5](?:[ ,\n]+[A-Z][+-][1-5])*"
LIST_CHARS = 20_000
INTEGRAL = Guard(
    "an expression in the variable, C, pi, E and elementary functions",
    check=check_antiderivative,
    closes="Integral(...) around the question scores 1.0",
)

GUARDS: dict[str, Guard] = {
    "advanced_geometry": Guard("a decimal number, with or without °, or a pair of them", ADVANCED, max_chars=200),
    "basic_arithmetic": Guard("a decimal number", DECIMAL),
    "bf": Guard("letters, digits and spaces", r"[A-Za-z0-9 -]+", max_chars=200),
    "binary_matrix": Guard(
        "rows of whole numbers, or a list of lists of them",
        r"[0-9 \n]+",
        list_pattern(list_pattern(WHOLE)),
        max_chars=LIST_CHARS,
    ),
    "bitwise_arithmetic": Guard("a whole number, decimal or hexadecimal", r"[+-]?(?:0[xX][0-9a-fA-F]{1,300}|[0-9]{1,300})"),
    "boxnet": Guard(
        "a JSON list of plans, with only actions that are possible at that point",
        check=check_boxnet,
        closes="one sweep over the whole field solves every problem, since impossible actions are skipped; targets can be moved",
    ),
    "calendar_arithmetic": Guard(
        "any text",
        check=check_calendar_arithmetic,
        closes="if the right number is -1, a wrong one scores above 1, without a limit",
    ),
    "codeio": Guard(
        "a JSON value equal to the right one (no partial marks)",
        check=check_codeio,
        closes="long strings of emoji score above 0.5, whatever the right value",
    ),
    "coin_flip": Guard(
        "a decimal number or a fraction within 0.0001 and 5 % of the right one (no partial marks)",
        PROBABILITY,
        check=check_coin_flip,
        closes='"0" scores 1.0',
        max_chars=60,
    ),
    "complex_arithmetic": Guard("digits, signs, i or j", r"[0-9ijIJ().+ -]+", closes='"nan" scores 1.0', max_chars=200),
    "countdown": Guard(
        "+ - * / and parentheses over whole numbers; each given number once, exactly the target",
        check=check_puzzle,
        closes="a value near the target counts as the target",
    ),
    "game_of_life": Guard(
        "a list of lists of 0 and 1, all of them right (no partial marks)",
        items=list_pattern(list_pattern("[01]")),
        check=check_game_of_life,
        closes="a board of dead cells scores about 0.9",
        max_chars=MAX_CHARS,
    ),
    "game_of_life_halting": Guard(
        "True or False, the right one", "(?i:true|false)", check=check_game_of_life_halting, closes="any text scores 1.0"
    ),
    "gsm_symbolic": Guard("words and numbers without brackets, quotes or underscores", WORDS, max_chars=300),
    "intermediate_integration": INTEGRAL,
    "n_queens": Guard(
        "rows of Q and _, or a list of lists of them", r"[Q_ \n]+", list_pattern(list_pattern(LETTER)), max_chars=LIST_CHARS
    ),
    "number_sorting": Guard(
        "a list of decimal numbers", items=list_pattern(NUMBER_ITEM), closes="a list of NaN scores 1.0", max_chars=LIST_CHARS
    ),
    "polynomial_equations": Guard("decimal numbers with commas between", rf"{DECIMAL}(?: ?, ?{DECIMAL})*"),
    "polynomial_multiplication": Guard(
        "a polynomial in the variables of the problem",
        check=check_polynomial,
        closes="expand(...) around the question scores 1.0",
    ),
    "puzzle24": Guard(
        "+ - * / and parentheses over whole numbers; each given number once, exactly 24",
        check=partial(check_puzzle, target=24),
        closes="6*4*1*1 solves every puzzle: the verifier ignores the given numbers",
    ),
    "rubiks_cube": Guard("moves in Singmaster notation, such as U R' F", CUBE_MOVES, max_chars=4000),
    "rush_hour": Guard(
        "moves such as F+1 K-2, none of them blocked",
        CAR_MOVES,
        check=check_rush_hour,
        closes="a long list of arbitrary moves may reach the exit, since blocked ones are skipped",
        max_chars=2000,
    ),
    "simple_integration": INTEGRAL,
    "spiral_matrix": Guard("whole numbers, or a list of them", r"[0-9 \n-]+", list_pattern(WHOLE), max_chars=LIST_CHARS),
    "string_insertion": Guard("capital letters, or a list of letters", r"[A-Z]+", list_pattern(LETTER), max_chars=LIST_CHARS),
}
