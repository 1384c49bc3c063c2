r"""Known rewards, the rows that ship with the audit for them, and the conversion of a user's rows.

The other spellings (`right`) and wrong answers (`wrong`) of these rows are written by hand: the audit generates variants mainly of
numbers, and verifiers make their worst mistakes on other answers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cohort.base.keyed import keyed_permutation
from cohort.recipe.sections import suggest_nearest
from cohort.rewards import BUILT_IN, built_in
from cohort.rewards.contract import importable_name
from cohort.tools.audit import attacks, programs
from cohort.tools.audit.reference_answers import read_number, read_reference
from cohort.tools.audit.running import AuditError, AuditOptions, AuditRow, find_built_in

# ---------------------------------------------------------------------------------------------------------------------
# Sample rows
# ---------------------------------------------------------------------------------------------------------------------


def make_row(prompt: str, answer: Any, right: tuple[str, ...] = (), wrong: tuple[str, ...] = ()) -> AuditRow:
    return AuditRow(prompt, {"answer": answer}, read_reference(answer), right, wrong)


MATH_ROWS: tuple[AuditRow, ...] = (
    make_row("What is 17 + 25?", "42", wrong=("4 2", "42%")),
    make_row("Take 19 from 12.", "-7", right=("-7.0",), wrong=("7", "-77")),
    make_row("How many seconds are in two weeks?", "1209600", right=(r"1\,209\,600", "1 209 600"), wrong=("1209", "1,209,60")),
    make_row("What is a population of 1.234 thousand?", "1,234", right=("1234",), wrong=("1.234", "1", "234")),
    make_row("Halve 6.28.", "3.14", right=("3.140", "+3.14"), wrong=("3.1", r"\pi")),
    make_row("A half, as a decimal?", "0.5", right=(".5", r"\tfrac{1}{2}", r"\frac12"), wrong=("5", "0.05", "5%")),
    make_row("Divide 3 by 4.", "3/4", right=(r"\frac34",), wrong=("34", "4/3", "3", "0.7")),
    make_row("Divide 5 by 8, in LaTeX.", r"\frac{5}{8}", right=(r"\frac58",), wrong=(r"\frac{8}{5}", r"\frac{5}{9}", "58")),
    make_row("One third?", r"\frac{1}{3}", wrong=("0.33", "0.333333", "3")),
    make_row("What share is 9 of 12, in per cent?", "75%", right=(r"75\%", "75.0%"), wrong=("75.5%", "57%", "7.5%")),
    make_row(
        "Simplify the square root of 12.",
        r"2\sqrt{3}",
        right=(r"2 \sqrt{3}",),
        wrong=(r"3\sqrt{2}", r"2\sqrt{5}", "2", r"2\sqrt{3}+1"),
    ),
    make_row(
        "A right angle in radians?",
        r"\frac{\pi}{2}",
        right=(r"\dfrac{\pi}{2}",),
        wrong=(r"\frac{\pi}{3}", r"\frac{2}{\pi}", r"\pi"),
    ),
    make_row(
        "Where do the lines meet?",
        "(3, 4)",
        right=("(3,4)", r"\left(3, 4\right)"),
        wrong=("(4, 3)", "(3, 5)", "3", "(3, 4, 5)"),
    ),
    make_row("For which x is x(1-x) not negative?", "[0, 1]", right=("[0,1]",), wrong=("[0, 2]", "[1, 0]", "0")),
    make_row("Expand (x+1)^2.", "x^2+2x+1", right=("x^2 + 2x + 1",), wrong=("x^2+2x+2", "x^2-2x+1", "x^2")),
    make_row("Which line has slope 2 through (0, 1)?", "y=2x+1", right=("y = 2x + 1",), wrong=("y=2x+2", "y=3x+1", "y=2x-1")),
    make_row("One over 2004 factorial?", r"\frac{1}{2004!}", wrong=(r"\frac{1}{2006!}", r"\frac{1}{2004}", "0")),
    make_row("Which option is right?", "B", right=(r"\text{B}",), wrong=("A", "C", "A, B, C, D")),
    make_row("Is 10 odd or even?", r"\text{even}", right=("even",), wrong=("odd", r"\text{odd}", "odd or even")),
    make_row("The capital of France?", "Paris", right=(r"\text{Paris}",), wrong=("Pari", "London", "Parisian")),
    make_row("Natalia sold 48 clips, then half as many. How many?", "In all 48 + 24 = 72 clips.\n#### 72", wrong=("48", "24")),
    make_row("What is 6 times 9?", r"We multiply: $6 \cdot 9 = \boxed{54}$.", wrong=("6", "9")),
    make_row("How many eggs are left?", 18, wrong=("1 8", "180")),
    make_row("The mean of 2 and 3?", 2.5, right=("5/2",), wrong=("2", "5")),
)
"""Answers of many kinds: whole, negative, long, decimal, fraction, LaTeX, per cent, root, pair, interval, polynomial, text."""

EXACT_ROWS: tuple[AuditRow, ...] = (
    make_row("The capital of France?", "Paris", wrong=("Pari", "Paris or London", "not Paris", "London")),
    make_row("What is 17 + 25?", "42", wrong=("42.0", "4 2", "The answer is 42.")),
    make_row("Sort: b, a, c", "a, b, c", wrong=("a, b", "a, b, c, d", "c, b, a")),
    make_row("Reverse: stop", "pots", wrong=("stop", "pots and pans")),
    make_row("Yes or no: is 7 prime?", "yes", wrong=("no", "yes or no", "yes no")),
    make_row("Write JSON.", '{"a": [1, 2]}', wrong=('{"a": [1, 2, 3]}', "{}")),
)

PLAIN_ROWS = tuple(AuditRow(row.prompt, row.columns, row.reference) for row in (MATH_ROWS[0], EXACT_ROWS[0], MATH_ROWS[6]))
"""For rewards that score only the shape of a text."""


def make_instruction_row(prompt: str, *instructions: Any, right: tuple[str, ...], wrong: tuple[str, ...]) -> AuditRow:
    return AuditRow(prompt, {"instructions": list(instructions)}, right=right, wrong=wrong)


INSTRUCTION_ROWS: tuple[AuditRow, ...] = (
    make_instruction_row(
        'Write {"name": "Ann", "age": 31} once more. Write only the JSON.',
        {"id": "json_record", "record": {"name": "Ann", "age": 31}},
        right=('{"name": "Ann", "age": 31}', ' {"age": 31.0, "name": "Ann"}\n'),
        wrong=(
            '```json\n{"name": "Ann", "age": 31}\n```',
            '{"name": "Ann", "age": 31} Done.',
            '{"name": "Ann", "age": true}',
            '{"name": "Bob", "age": 31, "name": "Ann"}',
        ),
    ),
    make_instruction_row(
        "Name fruits as exactly 3 bullet points, such as:\n* one\n* two\n* three\nUse no commas.",
        {"id": "detectable_format:number_bullet_lists", "num_bullets": 3},
        {"id": "punctuation:no_comma"},
        right=("* apple\n* pear\n* plum", "Here they are:\n- apple\n- pear\n- plum"),
        wrong=("* apple\n* pear\n* ", "* apple\n* pear", "* apple\n* pear\n* plum, or fig", "* a\n* b\n* c\n* d"),
    ),
    make_instruction_row(
        "Write a letter with at least 2 placeholders in square brackets, such as [name] and [address].",
        {"id": "detectable_content:number_placeholders", "num_placeholders": 2},
        right=("Dear [name], please come to [address].",),
        wrong=("[name] [address]", "Dear [] and [ ], hello.", "Dear [name], hello."),
    ),
    make_instruction_row(
        "Write at least 8 words on travelling with the keywords rain and train.",
        {"id": "keywords:existence", "keywords": ["rain", "train"]},
        {"id": "length_constraints:number_words", "relation": "at least", "num_words": 8},
        right=("The train was late because of the rain last night.",),
        wrong=("rain train", "The training was late because it rained again last night.", "rain train . . . . . . . ."),
    ),
)
"""Rows for the reward that checks instructions, with right and wrong completions."""

RIGHT_TEXTS: dict[str, tuple[str, ...]] = {
    "think_format": ("<think>6*7</think> 42", "<think>\nSix sevens.\n</think>\n\nIt is 42.", "<think>a < b</think>\\boxed{42}")
}
"""Built-in reward of the shape -> texts that it must accept, written by hand."""
WRONG_TEXTS: dict[str, tuple[str, ...]] = {
    "think_format": (
        "",
        "42",
        "<think></think> 42",
        "<think> \n </think> 42",
        "<think>6*7</think>",
        "<think>6*7</think> \n ",
        "<think>6*7",
        "6*7</think> 42",
        "42 <think>6*7</think> 42",
        "<think>6</think><think>7</think> 42",
        "<think>6*7</think> 42 </think>",
        "<think><think>6*7</think> 42",
        "</think>6*7<think> 42",
    )
}
"""Built-in reward of the shape -> texts that it must not accept."""


# ---------------------------------------------------------------------------------------------------------------------
# Profiles
# ---------------------------------------------------------------------------------------------------------------------

DEFAULT_ROWS = 8


@dataclass(frozen=True)
class Profile:
    """The kind, sample rows and documented forms of a reward that ships with Cohort."""

    kind: str
    rows: Callable[[], Sequence[AuditRow]]
    forms: tuple[str, ...] = ()
    """Forms that its documentation lists: the reference answers must be accepted in each."""
    threshold: float = 0.5
    jailed: bool = False


def name_surrounded_forms(*bases: str) -> tuple[str, ...]:
    return tuple(f"{base} {surroundings}".strip() for base in bases for surroundings in attacks.SURROUNDINGS)


def load_task_rows(source: str) -> Sequence[AuditRow]:
    """Rows of a task, for rewards that can score only such rows."""
    from cohort.data.tasks import load_task
    from cohort.rewards.gym.rows import load_gym

    kind, _, name = source.partition(":")
    load = load_task if kind == "task" else load_gym
    return make_rows(load(name, "train", 0, {"count": DEFAULT_ROWS}))


PROFILES: dict[str, Profile] = {
    "math_answer": Profile("math", lambda: MATH_ROWS, name_surrounded_forms("boxed", "says", "hashes", "tag")),
    "exact_match": Profile("exact", lambda: EXACT_ROWS, ("bare", "bare after thinking")),
    "code_tests": Profile(
        "code",
        lambda: programs.CODE_ROWS,
        ("fence", "fence after thinking", "fence with prose around it", "fence without a word", "bare program"),
        threshold=1.0,  # below it some tests have failed
        jailed=True,
    ),
    "instructions": Profile("shape", lambda: INSTRUCTION_ROWS, threshold=1.0),
    "cohort.rewards.gym.rows:gym_verifier": Profile(
        "exact", lambda: load_task_rows("gym:chain_sum"), ("boxed", "tag", "bare"), threshold=1.0
    ),
    "cohort.data.column_addition:check_steps": Profile("exact", lambda: load_task_rows("task:column_addition"), threshold=1.0),
}
SHAPE = Profile("shape", lambda: PLAIN_ROWS)
REFERENCE_NAMES = ("answer", "tests", "entry", "gold", "solution", "target", "label")


def find_function(function: str | Callable[..., Any]) -> tuple[str, str]:
    """(name for the report, name that a worker imports)."""
    if isinstance(function, str):
        if ":" in function and function not in BUILT_IN:
            module, _, name = function.partition(":")
            if not module or not name:
                raise AuditError(f'reward: {function!r} is not of the form "package.module:function".')
            return function, function
        return function, str(importable_name(built_in(function)))
    spec = importable_name(function)
    if spec is None:
        raise AuditError(
            f"reward {getattr(function, '__qualname__', repr(function))}: the audit runs the function in another process, which "
            "cannot import a lambda, a method, a closure or a function of the main script. Move it to the top level of its own "
            'module and name it "module:function".'
        )
    return find_built_in(spec) or spec, spec


def find_profile(label: str, spec: str) -> Profile | None:
    """The reward's profile, if known. A built-in reward without a parameter for a reference answer has the profile SHAPE."""
    if known := PROFILES.get(spec) or PROFILES.get(find_built_in(spec)):
        return known
    if label not in BUILT_IN:
        return None
    parameters = inspect.signature(BUILT_IN[label]).parameters
    return None if any(name in parameters for name in REFERENCE_NAMES) else SHAPE


# ---------------------------------------------------------------------------------------------------------------------
# Rows
# ---------------------------------------------------------------------------------------------------------------------


def make_rows(rows: Sequence[Mapping[str, Any]], options: AuditOptions | None = None) -> list[AuditRow]:
    """The rows for the audit. The prompt may be missing; all other columns are kept unchanged."""
    options = options or AuditOptions()
    reference, found = options.reference_column, []
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise AuditError(f"rows: row {number} is a {type(row).__name__}; each must be an object with named columns.")
        if number == 0 and reference != "answer" and reference not in row:
            columns = ", ".join(map(str, row))
            raise AuditError(
                f"reference: the rows have no column {reference!r}{suggest_nearest(reference, row)}; they have {columns}."
            )
        demonstration, program = row.get(options.demonstration), row.get(options.solution)
        found.append(
            AuditRow(
                prompt=row.get(options.prompt, ""),
                columns={str(column): value for column, value in row.items() if column != options.prompt},
                reference=read_reference(row.get(reference)),
                demonstration=demonstration if isinstance(demonstration, str) else "",
                solution=program if isinstance(program, str) else "",
            )
        )
    return found


def choose_rows(rows: Sequence[AuditRow], limit: int, seed: int) -> tuple[AuditRow, ...]:
    """`limit` rows, chosen by the seed; rows with a new reference answer come first."""
    order = [rows[index] for index in keyed_permutation(len(rows), "audit", seed)]
    first = {row.reference: number for number, row in reversed(list(enumerate(order)))}
    numbers = sorted(range(len(order)), key=lambda number: first[order[number].reference] != number)
    return tuple(order[number] for number in numbers[:limit])


def guess_kind(rows: Sequence[AuditRow]) -> str:
    """code for rows with tests, math if most reference answers are numbers or LaTeX, otherwise exact."""
    if any("tests" in row.columns for row in rows) and any(row.solution for row in rows):
        return "code"
    answers = [row.reference for row in rows if row.reference]
    numeric = [read_number(answer) is not None or "\\" in answer or "$" in answer for answer in answers]
    return "math" if numeric and sum(numeric) * 2 >= len(numeric) else "exact"
