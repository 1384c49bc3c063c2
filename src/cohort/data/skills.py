"""The task of the recipes `skills` and `skills_small`: a dozen reasoning-gym tasks on five levels, in one mixture.

    prompt         gcd 18,48=
    demonstration  18 48 18 12 6 0>6
    answer         6

Problems are the package's own, written in a few characters of the same data (solvers.py); the package's question is a sentence or a page, which
a model of characters would spend most of its time reading. What an answer is, and whether it is right, stays the package's:
rows carry the entry that `gym_verifier` hands to the task's verifier.

Splits. A problem belongs to "train" or "held_out" by a hash of its task and its prompt, so a problem that two levels
both draw is on the same side in both, and neither seed nor count can move it.

Some levels hold few problems (prime_factorization 1: 198 numbers). In training they are repeated until every task and level has
`count` rows, or the large ones would crowd them out; held out none is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cohort.base.keyed import keyed_permutation, keyed_share
from cohort.data.solvers import POSED, SOLVERS
from cohort.errors import PromptError
from cohort.recipe.section import suggest_nearest
from cohort.rewards.gym.rows import make_row, stream_entries

HELD_OUT_SHARE = 0.2
SPLITS = ("train", "held_out")
PATIENCE = 300
"""Entries in a row that bring no new problem before a level counts as exhausted."""

Settings = dict[str, Any]


def make_ranges(low: str, high: str, *bounds: tuple[int, int]) -> list[Settings]:
    return [{low: first, high: last} for first, last in bounds]


LEVELS: dict[str, list[Settings]] = {
    "chain_sum": [
        {"min_terms": terms, "max_terms": terms, "min_digits": 1, "max_digits": digits}
        for terms, digits in ((2, 2), (3, 2), (4, 2), (4, 3), (6, 3))
    ],
    "gcd": make_ranges("min_value", "max_value", (1, 30), (20, 60), (40, 99), (90, 300), (200, 999)),
    "prime_factorization": make_ranges("min_value", "max_value", (2, 199), (150, 350), (300, 600), (500, 999), (999, 2500)),
    "count_bits": make_ranges("min_n", "max_n", (1, 199), (128, 350), (256, 600), (500, 1023), (1000, 4095)),
    "count_primes": make_ranges("min_n", "max_n", (1, 30), (20, 50), (30, 70), (50, 99), (90, 150)),
    "spell_backward": make_ranges("min_word_len", "max_word_len", (3, 4), (4, 6), (6, 8), (8, 10), (10, 10)),
    "palindrome_generation": make_ranges("min_length", "max_length", (3, 4), (4, 6), (6, 8), (8, 10), (10, 12)),
    "ab": [{"length": length} for length in (4, 5, 6, 8, 10)],
    "fraction_simplification": [
        {"min_value": 1, "max_value": most, "min_factor": 2, "max_factor": factor, "styles": ["plain"]}
        for most, factor in ((12, 5), (15, 7), (25, 9), (40, 15), (99, 20))
    ],
    "binary_alternation": make_ranges("min_n", "max_n", (5, 7), (8, 9), (10, 11), (12, 14), (15, 20)),
    "lcm": make_ranges("min_value", "max_value", (1, 15), (10, 25), (20, 40), (30, 60), (50, 99)),
    "decimal_chain_sum": [
        {"min_terms": terms, "max_terms": terms, "min_digits": 1, "max_digits": 1, "min_decimal_places": 1, "max_decimal_places": places}
        for terms, places in ((2, 1), (3, 1), (4, 1), (3, 2), (4, 2))
    ],
}  # fmt: skip
"""Task -> the settings of its levels, from easy to hard."""


def skills(
    split: str = "train", seed: int = 0, tasks: Sequence[str] = (), levels: Sequence[int] = (1,), count: int = 500
) -> list[dict[str, Any]]:
    """`count` rows of every task (none named: all with demonstrations) on every level, mixed; fewer where no more are held out."""
    if split not in SPLITS:
        raise PromptError(
            f"prompts.split: skills has no split {split!r}{suggest_nearest(split, SPLITS)}; it has train and held_out"
        )
    if not isinstance(count, int) or count < 1:
        raise PromptError(f"prompts.args.count: give the rows of each task and level, at least 1 (got {count!r})")
    names = [tasks] if isinstance(tasks, str) else list(tasks) or list(SOLVERS)
    for name in names:
        if name not in LEVELS:
            raise PromptError(
                f"prompts.args.tasks: no task {name!r}{suggest_nearest(name, LEVELS)}; known: {', '.join(LEVELS)}"
            )
    for level in levels:
        if not isinstance(level, int) or not 1 <= level <= 5:
            raise PromptError(f"prompts.args.levels: levels are 1 to 5 (got {level!r})")
    rows = [row for name in names for level in levels for row in draw_level(name, level, split, seed, count)]
    return [rows[place] for place in keyed_permutation(len(rows), "skills", seed, split)]


def draw_level(name: str, level: int, split: str, seed: int, count: int) -> list[dict[str, Any]]:
    """Different problems of one task and level, in the order they are drawn; in training repeated up to `count`."""
    settings = LEVELS[name][level - 1]
    found: dict[str, dict[str, Any]] = {}
    idle = 0
    for entry in stream_entries(name, split, seed, settings):
        if len(found) == count or idle == PATIENCE:
            break
        idle += 1
        if entry is None:  # nothing is left of an A::B program: silence would be right
            continue
        solution = (SOLVERS.get(name) or POSED[name])(entry)
        if solution.prompt in found or find_split(name, solution.prompt) != split:
            continue
        row = make_row(name, entry, settings) | {"prompt": solution.prompt, "level": level}
        found[solution.prompt] = row | ({"demonstration": solution.demonstration} if name in SOLVERS else {})
        idle = 0
    different = list(found.values())
    return [different[place % len(different)] for place in range(count)] if split == "train" and different else different


def find_split(name: str, prompt: str) -> str:
    """Which split a problem belongs to, whatever seed and level it is drawn with."""
    return "held_out" if keyed_share("skills", name, prompt) < HELD_OUT_SHARE else "train"
