"""What an answer must look like before a gym verifier sees it, and what the verifiers forget to ask.

All of this runs in the trusted process. Some of the package's verifiers hand the answer to `eval` or to sympy's parsers;
an answer that got code executed there could forge its own verdict, jail or no jail. So a *grammar* says, task by task,
what an honest answer can look like: digits, plain lists, expressions in named functions. What it refuses is never
shown to the verifier and scores 0 as "unparsed".

Others can be had for less than the right answer: with "nan", with a board of dead cells, with four numbers that are
not the puzzle's. A *guard* holds the answer against the entry as well; what it refuses scores 0 as "wrong".

Every pattern here is matched in time linear in the text, or on text whose length is bounded first.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from cohort.rewards.gym.grammar import AnswerRefused, ArithmeticReader, Grammar, unparsed

MAX_CHARS = 100_000
"""Of an answer to a task without a grammar; with one, each grammar has its own, lower bound."""


@dataclass(frozen=True)
class Guard:
    """What an answer must be: a pattern of text or of a list, and what only a function can tell."""

    grammar: str
    """What passes, in words."""
    text: str = ""
    """Pattern of the answer as it stands."""
    items: str = ""
    """Pattern of the answer without its blanks: a list. Where there are both patterns, one of them must match."""
    check: Callable[[str, Mapping[str, Any]], str] | None = None
    """Takes the answer and the entry, and returns the text to show to the verifier, or raises AnswerRefused."""
    closes: str = ""
    """What the package's verifier would have paid for."""
    max_chars: int = 1000

    def admit(self, answer: str, entry: Mapping[str, Any]) -> str:
        """The answer as the verifier may see it. Raises AnswerRefused."""
        if self.text or self.items:
            if len(answer) > self.max_chars:
                raise unparsed(f"{self.grammar}, in at most {self.max_chars} characters")
            in_text = self.text and re.fullmatch(self.text, answer)
            if not in_text and not (self.items and re.fullmatch(self.items, BLANKS.sub("", answer))):
                raise unparsed(self.grammar)
        return answer if self.check is None else self.check(answer, entry)


def admit(name: str, answer: str, entry: Mapping[str, Any]) -> str:
    """The text that the task's verifier may see. Raises AnswerRefused for the answer's faults, KeyError for the entry's."""
    if not answer:
        raise AnswerRefused("no_answer", "the answer is empty")
    if len(answer) > MAX_CHARS:
        raise AnswerRefused("unparsed", f"the answer has more than {MAX_CHARS} characters")
    guard = GUARDS.get(name)
    return answer if guard is None else guard.admit(answer, entry)


# ---------------------------------------------------------------------------------------------------------------------
# Plain text and plain lists
# ---------------------------------------------------------------------------------------------------------------------

BLANKS = re.compile(r"[ \t\r\n]+")
DECIMAL = r"[+-]?[0-9]{1,40}(?:\.[0-9]{1,40})?"


def list_pattern(item: str) -> str:
    """Pattern of a list without blanks. Items have no comma or bracket outside of quotes, so there is one way to match."""
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
ARITHMETIC = Grammar()


def check_countdown(answer: str, entry: Mapping[str, Any]) -> str:
    return check_puzzle(answer, entry["metadata"]["numbers"], entry["metadata"]["target"])


def check_puzzle24(answer: str, entry: Mapping[str, Any]) -> str:
    return check_puzzle(answer, entry["metadata"]["numbers"], 24)


def check_puzzle(answer: str, numbers: list[int], target: int) -> str:
    reader = ArithmeticReader(answer, ARITHMETIC)
    value = reader.read()
    if Counter(reader.numbers) != Counter(map(Fraction, numbers)):
        raise AnswerRefused("wrong", "it does not use each given number once")
    if value != target:
        raise AnswerRefused("wrong", f"it is worth {value}, not {target}")
    return answer


def read_variables(names: list[str]) -> frozenset[str]:
    """Names of variables as the entry has them. Anything longer, or a letter that sympy reads as a constant, is none."""
    found = frozenset(str(name) for name in names)
    if not all(re.fullmatch(r"[a-zA-DF-HJ-MPRT-Z]", name) for name in found):
        raise KeyError(f"variables of one letter are expected, not {sorted(found)}")
    return found


def check_polynomial(answer: str, entry: Mapping[str, Any]) -> str:
    # A product that is zero has no variables left; those of the answer are then wrong, which the verifier finds.
    names = read_variables(entry["metadata"]["variables"])
    ArithmeticReader(answer, Grammar(names=names, powers=True, max_chars=5000, max_digits=60)).read()
    return answer


def check_antiderivative(answer: str, entry: Mapping[str, Any]) -> str:
    names = read_variables([entry["metadata"]["variable"]]) | {"C"} | CONSTANTS
    grammar = Grammar(names=names, functions=FUNCTIONS, powers=True, decimals=True, max_chars=1000, max_digits=30)
    ArithmeticReader(answer, grammar).read()
    return answer


# ---------------------------------------------------------------------------------------------------------------------
# Answers held against the entry
# ---------------------------------------------------------------------------------------------------------------------


def check_coin_flip(answer: str, entry: Mapping[str, Any]) -> str:
    try:
        given, gold = Fraction(answer.replace(" ", "")), Fraction(entry["answer"])
    except (ValueError, ZeroDivisionError):
        raise unparsed("a probability as a decimal or a fraction") from None
    # 5 % of a small probability still tells it from zero, and allows for one significant digit of rounding.
    if abs(given - gold) > min(Fraction(1, 10_000), gold / 20):
        raise AnswerRefused("wrong", "it is another probability")
    return answer.replace(" ", "")


def check_calendar_arithmetic(answer: str, entry: Mapping[str, Any]) -> str:
    """The package divides the error by the right number. Where that is -1, for "no such day", every error raises the score."""
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
        raise AnswerRefused("wrong", "the other one")
    return answer


def check_codeio(answer: str, entry: Mapping[str, Any]) -> str:
    """The package's part marks for similar JSON can be had with long strings, so the value must be the right one."""
    try:
        given, gold = parse_strict_json(answer), json.loads(entry["answer"])
    except (ValueError, RecursionError):
        raise unparsed("a JSON value") from None
    if not is_same_json(given, gold):
        raise AnswerRefused("wrong", "it is another value")
    return str(entry["answer"])


def parse_strict_json(text: str) -> Any:
    def refuse(word: str) -> Any:
        raise ValueError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def is_same_json(given: Any, gold: Any) -> bool:
    """Equal, with true and 1 kept apart, and 1 and 1.0 not."""
    if isinstance(given, bool) or isinstance(gold, bool):
        return given is gold
    if isinstance(gold, list) and isinstance(given, list):
        return len(given) == len(gold) and all(map(is_same_json, given, gold))
    if isinstance(gold, dict) and isinstance(given, dict):
        return given.keys() == gold.keys() and all(is_same_json(given[key], gold[key]) for key in gold)
    return bool(given == gold)


# --- rush hour --------------------------------------------------------------------------------------------------------

SIDE = 6


def check_rush_hour(answer: str, entry: Mapping[str, Any]) -> str:
    """The package skips moves that are blocked, so that a long list of any moves would wander into the solution."""
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
    """Move a car by one cell, if it can."""
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
    """The package skips actions that are impossible, so that one sweep over the whole field would solve every problem."""
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
        "a JSON list of plans, each action of which is possible when its turn comes",
        check=check_boxnet,
        closes="one sweep over the whole field solves every problem, for impossible actions are skipped; targets can be moved",
    ),
    "calendar_arithmetic": Guard(
        "any text",
        check=check_calendar_arithmetic,
        closes="where the right number is -1, a wrong one scores above 1, without a limit",
    ),
    "codeio": Guard(
        "a JSON value equal to the right one (no part marks)",
        check=check_codeio,
        closes="long strings of emoji earn more than half of the marks, whatever the right value",
    ),
    "coin_flip": Guard(
        "a decimal number or a fraction within 0.0001 and 5 % of the right one (no part marks)",
        PROBABILITY,
        check=check_coin_flip,
        closes='"0" scores 1.0',
        max_chars=60,
    ),
    "complex_arithmetic": Guard("digits, signs, i or j", r"[0-9ijIJ().+ -]+", closes='"nan" scores 1.0', max_chars=200),
    "countdown": Guard(
        "+ - * / and parentheses over whole numbers; each given number once, exactly the target",
        check=check_countdown,
        closes="a value near the target counts as the target",
    ),
    "game_of_life": Guard(
        "a list of lists of 0 and 1, all of them right (no part marks)",
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
        check=check_puzzle24,
        closes="6*4*1*1 solves every puzzle: the verifier does not look at the numbers given",
    ),
    "rubiks_cube": Guard("moves in Singmaster notation, such as U R' F", CUBE_MOVES, max_chars=4000),
    "rush_hour": Guard(
        "moves such as F+1 K-2, none of them blocked",
        CAR_MOVES,
        check=check_rush_hour,
        closes="a long list of any moves may reach the exit, for blocked ones are skipped",
        max_chars=2000,
    ),
    "simple_integration": INTEGRAL,
    "spiral_matrix": Guard("whole numbers, or a list of them", r"[0-9 \n-]+", list_pattern(WHOLE), max_chars=LIST_CHARS),
    "string_insertion": Guard("capital letters, or a list of letters", r"[A-Z]+", list_pattern(LETTER), max_chars=LIST_CHARS),
}
