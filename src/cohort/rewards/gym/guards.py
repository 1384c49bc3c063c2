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

from cohort.rewards.gym.grammar import Grammar, Reader, Refused, unparsed

MAX_CHARS = 100_000
"""Of an answer to a task without a grammar; with one, each grammar has its own, lower bound."""


@dataclass(frozen=True)
class Guard:
    """`check` takes the answer and the entry, and returns the text to show to the verifier, or raises Refused."""

    check: Callable[[str, Mapping[str, Any]], str]
    grammar: str
    """What passes, in words."""
    closes: str = ""
    """What the package's verifier would have paid for."""


def admit(name: str, answer: str, entry: Mapping[str, Any]) -> str:
    """The text that the task's verifier may see. Raises Refused for the answer's faults, KeyError for the entry's."""
    if not answer:
        raise Refused("no_answer", "the answer is empty")
    if len(answer) > MAX_CHARS:
        raise Refused("unparsed", f"the answer has more than {MAX_CHARS} characters")
    guard = GUARDS.get(name)
    return answer if guard is None else guard.check(answer, entry)


# ---------------------------------------------------------------------------------------------------------------------
# Plain text and plain lists
# ---------------------------------------------------------------------------------------------------------------------

BLANKS = re.compile(r"[ \t\r\n]+")
DECIMAL = r"[+-]?[0-9]{1,40}(?:\.[0-9]{1,40})?"


def list_of(item: str) -> str:
    """Pattern of a list without blanks. Items have no comma or bracket outside of quotes, so there is one way to match."""
    return rf"\[(?:(?:{item})(?:,(?:{item}))*,?)?\]"


WHOLE = r"-?[0-9]{1,12}"
LETTER = "'[A-Za-z_]'|\"[A-Za-z_]\""
NUMBER_ITEM = rf"'{DECIMAL}'|\"{DECIMAL}\"|{DECIMAL}"


def text_like(pattern: str, expected: str, max_chars: int = 1000) -> Callable[[str, Mapping[str, Any]], str]:
    """The answer as it stands matches the pattern."""
    compiled = re.compile(pattern)

    def check(answer: str, entry: Mapping[str, Any]) -> str:
        if len(answer) > max_chars or not compiled.fullmatch(answer):
            raise unparsed(expected)
        return answer

    return check


def list_like(pattern: str, expected: str, plain: str = "", max_chars: int = 20_000) -> Callable[[str, Mapping[str, Any]], str]:
    """The answer matches `plain`, or, without its blanks, the pattern of a list."""
    as_list, as_text = re.compile(pattern), re.compile(plain or r"(?!)")

    def check(answer: str, entry: Mapping[str, Any]) -> str:
        if len(answer) > max_chars or not (as_text.fullmatch(answer) or as_list.fullmatch(BLANKS.sub("", answer))):
            raise unparsed(expected)
        return answer

    return check


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


def countdown(answer: str, entry: Mapping[str, Any]) -> str:
    return exact_puzzle(answer, entry["metadata"]["numbers"], entry["metadata"]["target"])


def puzzle24(answer: str, entry: Mapping[str, Any]) -> str:
    return exact_puzzle(answer, entry["metadata"]["numbers"], 24)


def exact_puzzle(answer: str, numbers: list[int], target: int) -> str:
    reader = Reader(answer, ARITHMETIC)
    value = reader.read()
    if Counter(reader.numbers) != Counter(map(Fraction, numbers)):
        raise Refused("wrong", "it does not use each given number once")
    if value != target:
        raise Refused("wrong", f"it is worth {value}, not {target}")
    return answer


def single_letters(names: list[str]) -> frozenset[str]:
    """Names of variables as the entry has them. Anything longer, or a letter that sympy reads as a constant, is none."""
    found = frozenset(str(name) for name in names)
    if not all(re.fullmatch(r"[a-zA-DF-HJ-MPRT-Z]", name) for name in found):
        raise KeyError(f"variables of one letter are expected, not {sorted(found)}")
    return found


def polynomial(answer: str, entry: Mapping[str, Any]) -> str:
    # A product that is zero has no variables left; those of the answer are then wrong, which the verifier finds.
    names = single_letters(entry["metadata"]["variables"])
    Reader(answer, Grammar(names=names, powers=True, max_chars=5000, max_digits=60)).read()
    return answer


def antiderivative(answer: str, entry: Mapping[str, Any]) -> str:
    names = single_letters([entry["metadata"]["variable"]]) | {"C"} | CONSTANTS
    grammar = Grammar(names=names, functions=FUNCTIONS, powers=True, decimals=True, max_chars=1000, max_digits=30)
    Reader(answer, grammar).read()
    return answer


# ---------------------------------------------------------------------------------------------------------------------
# Answers held against the entry
# ---------------------------------------------------------------------------------------------------------------------

PROBABILITY = re.compile(r"[0-9]{0,12}(?:\.[0-9]{0,30})?(?:[eE]-?[0-9]{1,2})?|[0-9]{1,12} ?/ ?[0-9]{1,12}")


def coin_flip(answer: str, entry: Mapping[str, Any]) -> str:
    expected = "a probability as a decimal or a fraction"
    if len(answer) > 60 or not PROBABILITY.fullmatch(answer):
        raise unparsed(expected)
    try:
        given, gold = Fraction(answer.replace(" ", "")), Fraction(entry["answer"])
    except (ValueError, ZeroDivisionError):
        raise unparsed(expected) from None
    # 5 % of a small probability still tells it from zero, and allows for one significant digit of rounding.
    if abs(given - gold) > min(Fraction(1, 10_000), gold / 20):
        raise Refused("wrong", "it is another probability")
    return answer.replace(" ", "")


def calendar_arithmetic(answer: str, entry: Mapping[str, Any]) -> str:
    """The package divides the error by the right number. Where that is -1, for "no such day", every error raises the score."""
    if entry["answer"].startswith("-") and answer != entry["answer"]:
        raise Refused("wrong", "there is no such day")
    return answer


BOARD = re.compile(list_of(list_of("[01]")))


def game_of_life(answer: str, entry: Mapping[str, Any]) -> str:
    board = BLANKS.sub("", answer)
    if len(answer) > MAX_CHARS or not BOARD.fullmatch(board):
        raise unparsed("a board as a list of lists of 0 and 1")
    if board != BLANKS.sub("", entry["answer"]):
        raise Refused("wrong", "a cell is wrong")
    return board


def game_of_life_halting(answer: str, entry: Mapping[str, Any]) -> str:
    if answer.lower() not in ("true", "false"):
        raise unparsed("True or False")
    if answer.lower() != entry["answer"].lower():
        raise Refused("wrong", "the other one")
    return answer


def codeio(answer: str, entry: Mapping[str, Any]) -> str:
    """The package's part marks for similar JSON can be had with long strings, so the value must be the right one."""
    try:
        given, gold = strict_json(answer), json.loads(entry["answer"])
    except (ValueError, RecursionError):
        raise unparsed("a JSON value") from None
    if not same_json(given, gold):
        raise Refused("wrong", "it is another value")
    return str(entry["answer"])


def strict_json(text: str) -> Any:
    def refuse(word: str) -> Any:
        raise ValueError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def same_json(given: Any, gold: Any) -> bool:
    """Equal, with true and 1 kept apart, and 1 and 1.0 not."""
    if isinstance(given, bool) or isinstance(gold, bool):
        return given is gold
    if isinstance(gold, list) and isinstance(given, list):
        return len(given) == len(gold) and all(map(same_json, given, gold))
    if isinstance(gold, dict) and isinstance(given, dict):
        return given.keys() == gold.keys() and all(same_json(given[key], gold[key]) for key in gold)
    return bool(given == gold)


# --- rush hour --------------------------------------------------------------------------------------------------------

SIDE = 6
CAR_MOVES = re.compile(r"[A-Z][+-][1-5](?:[ ,\n]+[A-Z][+-][1-5])*")


def rush_hour(answer: str, entry: Mapping[str, Any]) -> str:
    """The package skips moves that are blocked, so that a long list of any moves would wander into the solution."""
    if len(answer) > 2000 or not CAR_MOVES.fullmatch(answer):
        raise unparsed("moves such as F+1 K-2")
    config = str(entry["metadata"]["board_config"])
    cars = {
        chr(ord("A") + number): [cell for cell in range(SIDE * SIDE) if config[cell] == label]
        for number, label in enumerate(sorted(set(config) - {"o", "x"}))
    }
    walls = {cell for cell in range(SIDE * SIDE) if config[cell] == "x"}
    for move in re.findall(r"[A-Z][+-][1-5]", answer):
        for _ in range(int(move[2])):
            if not drive(cars, walls, move[0], 1 if move[1] == "+" else -1):
                raise Refused("wrong", f"{move} is blocked")
    return answer


def drive(cars: dict[str, list[int]], walls: set[int], name: str, direction: int) -> bool:
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


def boxnet(answer: str, entry: Mapping[str, Any]) -> str:
    """The package skips actions that are impossible, so that one sweep over the whole field would solve every problem."""
    expected = 'a list of plans such as [{"Agent[0.5, 0.5]": "move(box_red, target_red)"}]'
    try:
        plans = strict_json(answer)
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
            if not act(squares, f"{agent[1]}_{agent[2]}", action):
                raise Refused("wrong", f"{agent[0]} cannot {action[0]}"[:200])
    return answer


def act(squares: dict[str, list[str]], place: str, action: re.Match[str]) -> bool:
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

WHOLE_NUMBER = "a whole number"
ADVANCED = rf"\(? ?{DECIMAL} ?(?:, ?{DECIMAL} ?)?\)? ?°?"
WORDS = r"(?:[A-Za-z0-9 ,$€£%:+-]|\.(?![A-Za-z]))+"

GUARDS: dict[str, Guard] = {
    "advanced_geometry": Guard(
        text_like(ADVANCED, "a decimal number, an angle or a pair", 200),
        "a decimal number, with or without °, or a pair of them",
    ),
    "basic_arithmetic": Guard(text_like(DECIMAL, "a number"), "a decimal number"),
    "bf": Guard(text_like(r"[A-Za-z0-9 -]+", "letters and digits", 200), "letters, digits and spaces"),
    "binary_matrix": Guard(
        list_like(list_of(list_of(WHOLE)), "rows of digits", r"[0-9 \n]+"), "rows of whole numbers, or a list of lists of them"
    ),
    "bitwise_arithmetic": Guard(
        text_like(r"[+-]?(?:0[xX][0-9a-fA-F]{1,300}|[0-9]{1,300})", WHOLE_NUMBER), "a whole number, decimal or hexadecimal"
    ),
    "boxnet": Guard(
        boxnet,
        "a JSON list of plans, each action of which is possible when its turn comes",
        "one sweep over the whole field solves every problem, for impossible actions are skipped; targets can be moved",
    ),
    "calendar_arithmetic": Guard(
        calendar_arithmetic, "any text", "where the right number is -1, a wrong one scores above 1, without a limit"
    ),
    "codeio": Guard(
        codeio,
        "a JSON value equal to the right one (no part marks)",
        "long strings of emoji earn more than half of the marks, whatever the right value",
    ),
    "coin_flip": Guard(
        coin_flip, "a decimal number or a fraction within 0.0001 and 5 % of the right one (no part marks)", '"0" scores 1.0'
    ),
    "complex_arithmetic": Guard(
        text_like(r"[0-9ijIJ().+ -]+", "a complex number such as 3 + 4i", 200), "digits, signs, i or j", '"nan" scores 1.0'
    ),
    "countdown": Guard(
        countdown,
        "+ - * / and parentheses over whole numbers; each given number once, exactly the target",
        "a value near the target counts as the target",
    ),
    "game_of_life": Guard(
        game_of_life, "a list of lists of 0 and 1, all of them right (no part marks)", "a board of dead cells scores about 0.9"
    ),
    "game_of_life_halting": Guard(game_of_life_halting, "True or False, the right one", "any text scores 1.0"),
    "gsm_symbolic": Guard(text_like(WORDS, "a number", 300), "words and numbers without brackets, quotes or underscores"),
    "intermediate_integration": Guard(
        antiderivative,
        "an expression in the variable, C, pi, E and elementary functions",
        "Integral(...) around the question scores 1.0",
    ),
    "n_queens": Guard(
        list_like(list_of(list_of(LETTER)), "a board of Q and _", r"[Q_ \n]+"), "rows of Q and _, or a list of lists of them"
    ),
    "number_sorting": Guard(
        list_like(list_of(NUMBER_ITEM), "a list of numbers"), "a list of decimal numbers", "a list of NaN scores 1.0"
    ),
    "polynomial_equations": Guard(
        text_like(rf"{DECIMAL}(?: ?, ?{DECIMAL})*", "decimal numbers with commas", 1000), "decimal numbers with commas between"
    ),
    "polynomial_multiplication": Guard(
        polynomial, "a polynomial in the variables of the problem", "expand(...) around the question scores 1.0"
    ),
    "puzzle24": Guard(
        puzzle24,
        "+ - * / and parentheses over whole numbers; each given number once, exactly 24",
        "6*4*1*1 solves every puzzle: the verifier does not look at the numbers given",
    ),
    "rubiks_cube": Guard(
        text_like(r"[UDLRFBMESXYZ]w?'?[1-3]?(?:[ \n]+[UDLRFBMESXYZ]w?'?[1-3]?)*", "moves such as U R' F", 4000),
        "moves in Singmaster notation",
    ),
    "rush_hour": Guard(
        rush_hour,
        "moves such as F+1 K-2, none of them blocked",
        "a long list of any moves may reach the exit, for blocked ones are skipped",
    ),
    "simple_integration": Guard(
        antiderivative,
        "an expression in the variable, C, pi, E and elementary functions",
        "Integral(...) around the question scores 1.0",
    ),
    "spiral_matrix": Guard(list_like(list_of(WHOLE), "whole numbers", r"[0-9 \n-]+"), "whole numbers, or a list of them"),
    "string_insertion": Guard(list_like(list_of(LETTER), "letters", r"[A-Z]+"), "capital letters, or a list of letters"),
}
