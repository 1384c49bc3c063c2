r"""The demo task: add two numbers in writing, one column per line, lowest column first, carry included.

    prompt         123+989=
    demonstration  3+9+0=12\n2+8+1=11\n1+9+1=11\n>1112
    answer         1112

The steps matter: a small model that has seen some demonstrations solves a good part of the problems by sampling, so
groups hold both successes and failures, which is where GRPO has a signal. The answer follows `>`, so that a checker
need not trust the steps.

Splits. A problem belongs to "train" or "held_out" by a hash of its *unordered* pair of numbers: a+b and b+a are on
the same side, and neither the seed nor the number of rows can move a problem across.

Other distributions, for a second evaluation set:
  kind = "carry"     every column carries. A hard slice of what training on "any" also contains.
  kind = "no_carry"  no column carries. Train on this and evaluate on "carry" for a rule that was never shown.
  digits = 4         longer numbers than the ones trained on.

Process rewards: `check_steps` judges every line of a completion by the demonstration.
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
"""Up to this many ordered pairs all problems of a split can be listed (three digits: 810,000, about two seconds)."""


def column_addition(
    split: str = "train", seed: int = 0, digits: int = 3, count: int = 0, kind: str = "any"
) -> list[dict[str, Any]]:
    """`count` different problems of a split, drawn by the seed. count 0: 8000 for training, 1000 held out."""
    if split not in DEFAULT_COUNTS:
        raise PromptError(
            f"prompts.split: column_addition has no split {split!r}{suggest_nearest(split, DEFAULT_COUNTS)}; it has train and held_out"
        )
    if kind not in KINDS:
        raise PromptError(f"prompts.args.kind: {kind!r} is not one of {', '.join(KINDS)}{suggest_nearest(kind, KINDS)}")
    if not isinstance(digits, int) or not 1 <= digits <= 18:
        raise PromptError(f"prompts.args.digits: give a whole number from 1 to 18 (got {digits!r})")
    if not isinstance(count, int) or count < 0:
        raise PromptError(f"prompts.args.count: give the number of rows, 0 for the default (got {count!r})")
    return [make_row(first, second) for first, second in draw_pairs(split, seed, digits, count, kind)]


def make_row(first: int, second: int) -> dict[str, Any]:
    return {"prompt": f"{first}+{second}=", "answer": str(first + second), "demonstration": demonstrate(first, second)}


def demonstrate(first: int, second: int) -> str:
    """The written-out addition, in exactly the form the task asks for."""
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
    r"""A process reward: each line of a completion is a step, 1.0 if it is the demonstration's line of that number, else 0.0.

        check_steps(["46+87="], ["6+7+0=13\n4+8+1=12\n>133"])   ->   [[(8, 1.0), (17, 0.0), (22, 1.0)]]

    The newline belongs to the line it opens: to go on after the answer is a mistake of the surplus line and not of the
    answer. Surplus lines are wrong, empty ones too. Where lines are missing, the last one written is wrong whatever it
    says, for to stop there was the mistake. So the mean reaches 1.0 for the demonstration alone; else one right line, and
    nothing after it, would be worth as much.
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
    """(line with the newline before it, where it ends). A first line without a character is one with the second."""
    return [(step.text, step.end) for step in split_steps(text, keep_empty=True, pattern=r"(?=\n)")]


def read_numbers(prompt: str) -> tuple[int, int]:
    found = re.search(r"(\d+)\+(\d+)=\s*\Z", prompt)
    if found is None:
        raise ValueError(f"check_steps: the prompt {prompt!r} does not end in an addition such as 123+989=")
    return int(found[1]), int(found[2])


def find_split(first: int, second: int) -> str:
    """Which split a problem belongs to. Unordered, and independent of every seed."""
    low, high = min(first, second), max(first, second)
    return "held_out" if keyed_share("column_addition", low, high) < HELD_OUT_SHARE else "train"


def is_kind(first: int, second: int, kind: str) -> bool:
    if kind == "any":
        return True
    carries = [sum(column) >= 10 for column in columns(first, second)]
    return all(carries) if kind == "carry" else not any(carries)


def draw_pairs(split: str, seed: int, digits: int, count: int, kind: str) -> list[tuple[int, int]]:
    """Different ordered pairs, by rejection where the domain is large beside the count, else from the whole list."""
    low, span = 10 ** (digits - 1), 9 * 10 ** (digits - 1)
    wanted = count or DEFAULT_COUNTS[split]
    found: dict[tuple[int, int], None] = {}
    # A few hundred draws per row are plenty unless the split is nearly used up; then the list below decides.
    for attempt in range(wanted * 400 if span * span > 20 * wanted else 0):
        key = ("column_addition", seed, split, kind, attempt)
        pair = (low + keyed_hash(*key, "first") % span, low + keyed_hash(*key, "second") % span)
        if pair not in found and find_split(*pair) == split and is_kind(*pair, kind):
            found[pair] = None
            if len(found) == wanted:
                return list(found)
    if span * span > MAX_LISTED_PAIRS:
        raise PromptError(f"prompts.args.count: {wanted} different problems of kind {kind!r} cannot be drawn; ask for fewer")
    everything = [
        (first, second)
        for first in range(low, low + span)
        for second in range(low, low + span)
        if find_split(first, second) == split and is_kind(first, second, kind)
    ]
    if not count and everything:  # The default takes what there is; a number that was asked for is kept or refused.
        wanted = min(wanted, len(everything))
    if wanted > len(everything) or not everything:
        raise PromptError(
            f"prompts.args.count: {wanted} rows asked, but split {split!r} has {len(everything)} problems of {digits} "
            f"digits and kind {kind!r}; ask for at most {len(everything)} or raise prompts.args.digits"
        )
    order = keyed_permutation(len(everything), "column_addition", seed, split, kind)
    return [everything[index] for index in order[:wanted]]
