r"""Column addition of two numbers, one line per column, lowest column first, with the carry.

    prompt         123+989=
    demonstration  3+9+0=12\n2+8+1=11\n1+9+1=11\n>1112
    answer         1112

The steps matter: after some demonstrations a small model solves part of the problems by sampling, so groups contain both
successes and failures, which GRPO needs. The answer follows `>`, so a checker can ignore the steps.

Splits. A problem belongs to "train" or "held_out" by a hash of its *unordered* pair of numbers: a+b and b+a are in
the same split, and neither the seed nor the number of rows moves a problem to the other split.

Other distributions, for a second evaluation set:
  kind = "carry"     every column carries: hard problems that training on "any" also contains.
  kind = "no_carry"  no column carries: train on this and evaluate on "carry" to test a rule that was not in the training data.
  digits = 4         longer numbers than in training.

Process rewards: `check_steps` compares every line of a completion with the demonstration.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from cohort.base.keyed import keyed_hash, keyed_permutation, keyed_share
from cohort.errors import PromptError
from cohort.recipe.sections import suggest_nearest
from cohort.rewards.steps import split_steps
from cohort_verify.text import text_of

HELD_OUT_SHARE = 0.1
DEFAULT_COUNTS = {"train": 8000, "held_out": 1000}
KINDS = ("any", "carry", "no_carry")
MAX_LISTED_PAIRS = 1_000_000
"""Up to this many ordered pairs, all problems of a split can be listed (three digits: 810,000 pairs, about two seconds)."""


def column_addition(
    split: str = "train", seed: int = 0, digits: int = 3, count: int = 0, kind: str = "any"
) -> list[dict[str, Any]]:
    """`count` different problems of a split, drawn by the seed; 0: 8000 for training, 1000 held out."""
    check_split("column_addition", split)
    if kind not in KINDS:
        raise PromptError(f"prompts.args.kind: {kind!r} is not one of {', '.join(KINDS)}{suggest_nearest(kind, KINDS)}")
    if not isinstance(digits, int) or not 1 <= digits <= 18:
        raise PromptError(f"prompts.args.digits: give a whole number from 1 to 18 (got {digits!r})")
    if not isinstance(count, int) or count < 0:
        raise PromptError(f"prompts.args.count: give the number of rows, 0 for the default (got {count!r})")
    return [make_row(first, second) for first, second in draw_pairs(split, seed, digits, count, kind)]


def check_split(task: str, split: str) -> None:
    if split not in DEFAULT_COUNTS:
        known = ", ".join(DEFAULT_COUNTS)
        raise PromptError(
            f"prompts.split: {task} has no split {split!r}{suggest_nearest(split, DEFAULT_COUNTS)}; known: {known}"
        )


def make_row(first: int, second: int) -> dict[str, Any]:
    return {"prompt": f"{first}+{second}=", "answer": str(first + second), "demonstration": demonstrate(first, second)}


def demonstrate(first: int, second: int) -> str:
    """The column addition in the exact form of the task."""
    lines = [f"{top}+{bottom}+{carry}={top + bottom + carry}" for top, bottom, carry in columns(first, second)]
    return "\n".join([*lines, f">{first + second}"])


def columns(first: int, second: int) -> Iterator[tuple[int, int, int]]:
    """(digit of the first, digit of the second, carry from the column before), lowest column first."""
    carry = 0
    while first or second:
        top, bottom = first % 10, second % 10
        yield top, bottom, carry
        carry = (top + bottom + carry) // 10
        first, second = first // 10, second // 10


def check_steps(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[list[tuple[int, float]]]:
    r"""A process reward: each line of a completion is a step, with reward 1.0 if it equals the same line of the demonstration, else 0.0.

        check_steps(["46+87="], ["6+7+0=13\n4+8+1=12\n>133"])   ->   [[(8, 1.0), (17, 0.0), (22, 1.0)]]

    A newline belongs to the line that it starts: continuing after the answer is a mistake of the surplus line, not of the
    answer. Surplus lines are wrong, including empty ones. If lines are missing, the last line is wrong whatever it contains,
    because stopping there was the mistake. So only the demonstration has a mean of 1.0; otherwise a single right line would
    score as much.
    """
    return [
        judge_lines(text_of(completion), demonstrate(*read_numbers(text_of(prompt))))
        for prompt, completion in zip(prompts, completions, strict=True)
    ]


check_steps.per_completion = True  # type: ignore[attr-defined]
check_steps.reads = ("prompts", "completions")  # type: ignore[attr-defined]


def judge_lines(text: str, demonstration: str) -> list[tuple[int, float]]:
    written, expected = cut_lines(text), cut_lines(demonstration)
    right = [line == wanted for (line, _), (wanted, _) in zip(written, expected, strict=False)]
    right += [False] * (len(written) - len(expected))
    if written and len(written) < len(expected):
        right[-1] = False
    return [(end, float(is_right)) for (_, end), is_right in zip(written, right, strict=True)]


def cut_lines(text: str) -> list[tuple[str, int]]:
    """(line with the newline before it, its end) for every line. An empty first line is joined with the second."""
    return [(step.text, step.end) for step in split_steps(text, keep_empty=True, pattern=r"(?=\n)")]


def read_numbers(prompt: str) -> tuple[int, int]:
    found = re.search(r"(\d+)\+(\d+)=\s*\Z", prompt)
    if found is None:
        raise ValueError(f"check_steps: the prompt {prompt!r} does not end in an addition such as 123+989=")
    return int(found[1]), int(found[2])


def find_split(first: int, second: int) -> str:
    """The split of a problem, independent of the order of its numbers and of the seed."""
    low, high = min(first, second), max(first, second)
    return "held_out" if keyed_share("column_addition", low, high) < HELD_OUT_SHARE else "train"


def is_kind(first: int, second: int, kind: str) -> bool:
    if kind == "any":
        return True
    carries = [sum(column) >= 10 for column in columns(first, second)]
    return all(carries) if kind == "carry" else not any(carries)


def draw_pairs(split: str, seed: int, digits: int, count: int, kind: str) -> list[tuple[int, int]]:
    """Different ordered pairs: by rejection if there are far more pairs than needed, else from the list of all pairs."""
    low, span = 10 ** (digits - 1), 9 * 10 ** (digits - 1)
    wanted = count or DEFAULT_COUNTS[split]
    found: dict[tuple[int, int], None] = {}
    # 400 draws per row suffice unless almost all pairs are needed; then the list below is used.
    for attempt in range(wanted * 400 if span * span > 20 * wanted else 0):
        key = ("column_addition", seed, split, kind, attempt)
        pair = (low + keyed_hash(*key, "first") % span, low + keyed_hash(*key, "second") % span)
        if pair not in found and find_split(*pair) == split and is_kind(*pair, kind):
            found[pair] = None
            if len(found) == wanted:
                return list(found)
    if span * span > MAX_LISTED_PAIRS:
        raise PromptError(
            f"prompts.args.count: {wanted} different problems of kind {kind!r} could not be drawn; use a smaller count"
        )
    everything = [
        (first, second)
        for first in range(low, low + span)
        for second in range(low, low + span)
        if find_split(first, second) == split and is_kind(first, second, kind)
    ]
    if not count and everything:  # The default is reduced to what is available; an explicit count is refused instead.
        wanted = min(wanted, len(everything))
    if wanted > len(everything) or not everything:
        raise PromptError(
            f"prompts.args.count: {wanted} rows requested, but split {split!r} has {len(everything)} problems of {digits} "
            f"digits and kind {kind!r}; use at most {len(everything)}, or raise prompts.args.digits"
        )
    order = keyed_permutation(len(everything), "column_addition", seed, split, kind)
    return [everything[index] for index in order[:wanted]]
