"""Word problems with one or two operations on small whole numbers.

    prompt   A box holds 8 apples. How many apples are in 7 boxes? Give the answer as a number.
    answer   56

A problem belongs to "train" or "held_out" by a hash of its text, so that neither the seed nor the number of rows can move it. Prompts
are chat messages: the model's chat template is applied.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from cohort.base.keyed import keyed_hash, keyed_share
from cohort.errors import PromptError
from cohort.recipe.sections import suggest_nearest

HELD_OUT_SHARE = 0.2
SPLITS = ("train", "held_out")
QUESTION = "Give the answer as a number."
NAMES = "Ada Ben Cleo Dan Eva Finn Grace Hugo Ines Jack Kira Leo Mona Nils Olga Paul Rosa Sam Tess Will"
THINGS = "apples books cards coins cups eggs flowers marbles pencils photos shells stamps stickers tickets"

Problem = tuple[str, Callable[..., int]]
"""Text, and the answer from the numbers in it: n < 10 < p / n; d < m * n; a < c."""

ONE: tuple[Problem, ...] = (
    ("{name} has {a} {thing} and gets {b} more. How many {thing} does {name} have now?", lambda a, b, **_: a + b),
    ("There are {a} {thing} on one table and {b} on another. How many {thing} are there in total?", lambda a, b, **_: a + b),
    ("{name} found {a} {thing} on Monday and {b} on Tuesday. How many {thing} is that altogether?", lambda a, b, **_: a + b),
    ("{name} had {c} {thing} and gave {a} away. How many {thing} are left?", lambda a, c, **_: c - a),
    ("A shop had {c} {thing} and sold {a} of them. How many {thing} remain?", lambda a, c, **_: c - a),
    ("{name} has {c} {thing}. {other} has {a} fewer. How many {thing} does {other} have?", lambda a, c, **_: c - a),
    ("A box holds {m} {thing}. How many {thing} are in {n} boxes?", lambda m, n, **_: m * n),
    ("{name} buys {m} {thing} every day. How many {thing} does {name} buy in {n} days?", lambda m, n, **_: m * n),
    ("Each of {n} children brings {m} {thing}. How many {thing} do they bring together?", lambda m, n, **_: m * n),
    ("{name} shares {p} {thing} equally among {n} friends. How many {thing} does each get?", lambda p, n, **_: p // n),
    ("{p} {thing} are packed into bags of {n}. How many bags are filled?", lambda p, n, **_: p // n),
    ("{n} children pick {p} {thing} in total, each the same number. How many is that for each?", lambda p, n, **_: p // n),
)
TWO: tuple[Problem, ...] = (
    ("{name} has {a} {thing}, gets {b} more and gives {d} away. How many {thing} are left?", lambda a, b, d, **_: a + b - d),
    ("{name} had {c} {thing}, lost {a} and then found {b}. How many {thing} is that now?", lambda a, b, c, **_: c - a + b),
    ("{name} has {a} {thing}. {other} has {b} more than {name}. How many do both have together?", lambda a, b, **_: a + a + b),
    ("A box holds {m} {thing}. {name} has {n} boxes and {a} single {thing}. How many in all?", lambda a, m, n, **_: m * n + a),
    ("{name} buys {n} bags of {m} {thing} and uses {d}. How many {thing} are left?", lambda d, m, n, **_: m * n - d),
    ("{name} has {a} {thing}, {other} has {b}, and a friend has {d}. How many in total?", lambda a, b, d, **_: a + b + d),
    (
        "{p} {thing} are shared equally by {n} friends. {name}, one of them, had {a}. How many has {name} now?",
        lambda a, n, p, **_: a + p // n,
    ),
    ("A shop sells {n} {thing} every morning and {m} every afternoon. How many in {d} days?", lambda d, m, n, **_: (m + n) * d),
    (
        "{name} earns {m} coins an hour, works {n} hours and spends {d} coins. How many are left?",
        lambda d, m, n, **_: m * n - d,
    ),
    (
        "{p} {thing} are packed into bags of {n}, and {d} bags are sold. How many bags are left?",
        lambda d, n, p, **_: p // n - d,
    ),
)
PROBLEMS = {1: ONE, 2: TWO}


def word_problems(split: str = "train", seed: int = 0, operations: int = 0, count: int = 1000) -> list[dict[str, Any]]:
    """`count` different problems of a split, drawn by the seed; `operations` in each: 1 or 2, 0 for both by turns."""
    if split not in SPLITS:
        raise PromptError(
            f"prompts.split: word_problems has no split {split!r}{suggest_nearest(split, SPLITS)}; it has train and held_out"
        )
    if operations not in (0, 1, 2):
        raise PromptError(f"prompts.args.operations: give 1, 2, or 0 for both (got {operations!r})")
    if not isinstance(count, int) or not 1 <= count <= 50_000:
        raise PromptError(f"prompts.args.count: give the number of rows, from 1 to 50000 (got {count!r})")
    rows: dict[str, dict[str, Any]] = {}
    for number in itertools.count():
        if len(rows) == count:
            break
        text, answer = draw_problem(seed, number, operations or 1 + len(rows) % 2)
        if (keyed_share("word_problems", text) < HELD_OUT_SHARE) == (split == "held_out"):
            rows[text] = {"prompt": [{"role": "user", "content": f"{text} {QUESTION}"}], "answer": str(answer)}
    return list(rows.values())


def draw_problem(seed: int, number: int, operations: int) -> tuple[str, int]:
    def draw(what: str, least: int, size: int) -> int:
        return least + keyed_hash("word_problems", seed, number, what) % size

    a, n = draw("a", 3, 47), draw("n", 2, 8)
    numbers = {"a": a, "b": draw("b", 3, 47), "c": a + draw("c", 3, 47), "d": draw("d", 2, 4)}
    numbers |= {"m": draw("m", 3, 10), "n": n, "p": n * draw("p", 10, 10)}
    names, things, problems = NAMES.split(), THINGS.split(), PROBLEMS[operations]
    first = draw("name", 0, len(names))
    other = names[(first + draw("other", 1, len(names) - 1)) % len(names)]
    text, solve = problems[draw("problem", 0, len(problems))]
    thing = things[draw("thing", 0, len(things))]
    return text.format(name=names[first], other=other, thing=thing, **numbers), solve(**numbers)
