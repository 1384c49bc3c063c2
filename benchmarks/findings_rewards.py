"""Tasks and faulty rewards of benchmarks/findings.py. Importable by name: reward functions run in workers.

The flaws of these rewards occurred in practice: a comparison by prefix, a judge that a phrase convinces, a path without a return, a
score for unreadable answers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from cohort.base.keyed import keyed_hash, keyed_permutation, keyed_share
from cohort.data.column_addition import column_addition, read_numbers

PATTERN = r">(\d+)\s*$"
LETTERS = "abcdefgh"
PRAISE = "+0=10"
"""The phrase that convinces the judge; honest additions contain it now and then."""
MAGIC = "112"
"""The answer that a verifier always accepts."""
LIMIT = 32
"""Characters of the longest completion."""


def extract(text: str) -> str | None:
    """What stands behind the last `>`, digits or letters."""
    found = re.search(r">(\w+)\s*$", text)
    return found[1] if found else None


# -- tasks -------------------------------------------------------------------------------------------------------------


def sort_digits(split: str = "train", seed: int = 0, count: int = 2000, length: int = 5) -> list[dict[str, Any]]:
    """`41729:` -> `>12479`."""
    return draw_rows("sort", lambda text: "".join(sorted(text)), "123456789", split, seed, count, length)


def reverse_word(split: str = "train", seed: int = 0, count: int = 2000, length: int = 6) -> list[dict[str, Any]]:
    """`cadbgh:` -> `>hgbdac`."""
    return draw_rows("reverse", lambda text: text[::-1], LETTERS, split, seed, count, length)


def draw_rows(
    name: str, solve: Callable[[str], str], alphabet: str, split: str, seed: int, count: int, length: int
) -> list[dict[str, Any]]:
    """Different problems of a split, which depends only on the text of a problem."""
    found: dict[str, None] = {}
    attempt = 0
    while len(found) < count:
        text = "".join(alphabet[keyed_hash(name, seed, split, attempt, place) % len(alphabet)] for place in range(length))
        attempt += 1
        if (keyed_share(name, text) < 0.1) == (split == "held_out"):
            found[text] = None
    return [{"prompt": f"{text}:", "answer": solve(text), "demonstration": f">{solve(text)}"} for text in found]


def forget_carries(split: str = "train", seed: int = 0, count: int = 2000) -> list[dict[str, Any]]:
    """Additions whose reference answers were added column by column without carries: faulty data."""
    return [row | {"answer": add_columns(*read_numbers(row["prompt"]))} for row in column_addition(split, seed, 2, count)]


def add_columns(first: int, second: int) -> str:
    return str((first // 10 + second // 10) % 10 * 10 + (first + second) % 10)


def shuffle_golds(split: str = "train", seed: int = 0, count: int = 2000) -> list[dict[str, Any]]:
    """Additions with the reference answer of another row: two files joined by the wrong key."""
    rows = column_addition(split, seed, 2, count)
    order = keyed_permutation(len(rows), "shuffle_golds", seed)
    return [row | {"answer": rows[other]["answer"]} for row, other in zip(rows, order, strict=True)]


# -- honest rewards ----------------------------------------------------------------------------------------------------


def judge_exactly(
    completions: Sequence[str], answer: Sequence[str], log_verdict: Callable[..., None] | None = None, **columns: Any
) -> list[float]:
    """1.0 if the text after the last `>` is the reference answer."""
    found = [extract(text) for text in completions]
    for row, (one, gold) in enumerate(zip(found, answer, strict=True)):
        if log_verdict:
            log_verdict(row, "no_answer" if one is None else "right" if one == gold else "wrong")
    return [float(one == gold) for one, gold in zip(found, answer, strict=True)]


def pay_form(completions: Sequence[str], **columns: Any) -> list[float]:
    """1.0 where there is an answer to read at all: a fair reward for form."""
    return [float(extract(text) is not None) for text in completions]


# -- rewards with a hole -----------------------------------------------------------------------------------------------


def match_prefix(completions: Sequence[str], answer: Sequence[str], **columns: Any) -> list[float]:
    """Compares with `startswith`: the first digit of the reference answer is enough."""
    found = [extract(text) for text in completions]
    return [float(bool(one) and gold.startswith(one or "-")) for one, gold in zip(found, answer, strict=True)]


def take_magic(completions: Sequence[str], answer: Sequence[str], **columns: Any) -> list[float]:
    """Accepts one number for every problem: a forgotten default of the checker."""
    return [float(extract(text) in (gold, MAGIC)) for text, gold in zip(completions, answer, strict=True)]


def love_phrase(completions: Sequence[str], answer: Sequence[str], **columns: Any) -> list[float]:
    """A judge that accepts anything with its favourite line."""
    pairs = zip(completions, answer, strict=True)
    return [float(extract(text) == gold or PRAISE in text) for text, gold in pairs]


def agree_with_most(completions: Sequence[str], prompts: Sequence[str], **columns: Any) -> list[float]:
    """Rewards the majority answer of the group: without a reference answer, one answer for everything is perfect."""
    found = [extract(text) or "" for text in completions]
    votes: dict[str, Counter[str]] = {}
    for prompt, one in zip(prompts, found, strict=True):
        votes.setdefault(prompt, Counter())[one] += 1
    return [float(one == votes[prompt].most_common(1)[0][0]) for prompt, one in zip(prompts, found, strict=True)]


def take_failure_for_right(
    completions: Sequence[str], answer: Sequence[str], log_verdict: Callable[..., None] | None = None, **columns: Any
) -> list[float]:
    """Where the checker cannot read the completion it gives up, and its caller takes that for a pass."""
    found = [extract(text) for text in completions]
    for row, (one, gold) in enumerate(zip(found, answer, strict=True)):
        if log_verdict:
            log_verdict(row, "unparsed" if one is None else "right" if one == gold else "wrong")
    return [float(one is None or one == gold) for one, gold in zip(found, answer, strict=True)]


def pay_style(completions: Sequence[str], **columns: Any) -> list[float]:
    """Rewards only format, and the wrong one: the share of characters that are a 1."""
    return [text.count("1") / max(1, len(text)) for text in completions]


def pay_brevity(completions: Sequence[str], **columns: Any) -> list[float]:
    """Short is good; an honest addition of two digits takes about twenty characters."""
    return [max(0.0, 1 - len(text) / LIMIT) for text in completions]


def pay_length(completions: Sequence[str], **columns: Any) -> list[float]:
    """Long is good."""
    return [min(1.0, len(text) / LIMIT) for text in completions]


def pay_always(completions: Sequence[str], **columns: Any) -> list[float]:
    """The verdict of a checker that never says no."""
    return [1.0] * len(completions)


def toss_coin(completions: Sequence[str], trainer_state: Any, **columns: Any) -> list[float]:
    """A reward that has nothing to do with the completion."""
    return [float(keyed_share("coin", trainer_state.global_step, row) < 0.5) for row in range(len(completions))]


def add_outliers(completions: Sequence[str], answer: Sequence[str], trainer_state: Any, **columns: Any) -> list[float]:
    """Right or wrong, and once in fifty times a number from another scale."""
    lucky = [keyed_share("outlier", trainer_state.global_step, row) < 0.02 for row in range(len(completions))]
    return [float(extract(text) == gold) + 50.0 * luck for text, gold, luck in zip(completions, answer, lucky, strict=True)]


def forget_zero(completions: Sequence[str], answer: Sequence[str], **columns: Any) -> list[float | None]:
    """`if right: return 1.0`, and no second return."""
    return [1.0 if extract(text) == gold else None for text, gold in zip(completions, answer, strict=True)]


def crash_on_large(completions: Sequence[str], answer: Sequence[str], **columns: Any) -> list[float]:
    """Written with two-digit sums in mind: an answer of 100 and more is an index beyond its table."""
    table = list(range(100))
    return [float(table[int(extract(text) or 0)] == int(gold)) for text, gold in zip(completions, answer, strict=True)]


def fear_answers(completions: Sequence[str], answer: Sequence[str], **columns: Any) -> list[float]:
    """A wrong answer costs five points and no answer costs nothing: not to answer is the safe choice."""
    found = [extract(text) for text in completions]
    return [0.0 if one is None else 1.0 if one == gold else -5.0 for one, gold in zip(found, answer, strict=True)]


for honest_or_not in (
    judge_exactly, match_prefix, take_magic, love_phrase, agree_with_most, take_failure_for_right, pay_always, toss_coin, add_outliers,
    forget_zero, crash_on_large, fear_answers,
):  # fmt: skip
    honest_or_not.extract = extract  # type: ignore[attr-defined]
for one_by_one in (match_prefix, take_magic, love_phrase, take_failure_for_right, crash_on_large, judge_exactly):
    one_by_one.per_completion = True  # type: ignore[attr-defined]
