"""Penalties for length and repetition, in time linear in the text.

A penalty goes from 0 (no penalty) down to -1 or -max_penalty, so adding one never raises the reward of a wrong completion, and an
unneeded one changes nothing. They favour short completions whether right or wrong: keep the weight well below the outcome's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from cohort.rewards.language import MAX_CHARS, UNSPACED, find_script, is_mark
from cohort_verify.text import text_of

# ---------------------------------------------------------------------------------------------------------------------
# Length
# ---------------------------------------------------------------------------------------------------------------------


def fall_linearly(distance: float, width: float) -> float:
    """0 up to distance 0, falling linearly to -1 at `width`, -1 beyond."""
    return max(-1.0, min(0.0, -distance / width))


def overlong_penalty(length: float, longest: float, buffer: float) -> float:
    """DAPO's soft overlong penalty: 0 up to longest - buffer, falling linearly to -1 at `longest`, -1 beyond."""
    return fall_linearly(length - (longest - buffer), buffer)


def soft_overlong(
    completions: Sequence[Any],
    longest: int,
    buffer: int,
    completion_ids: Sequence[Sequence[int]] | None = None,
    unit: str = "tokens",
    **columns: Any,
) -> list[float]:
    """DAPO's penalty as a part of the reward: 0 up to longest - buffer, falling linearly to -1 at `longest`, -1 beyond.

    Lengths are in sampled tokens, including the stop token, or with unit = "characters" in characters.
    """
    check_overlong((), longest, buffer, unit)
    return [overlong_penalty(size, longest, buffer) for size in measure_sizes(completions, completion_ids, unit)]


def check_overlong(columns: Sequence[str], longest: int, buffer: int, unit: str = "tokens") -> None:
    check_whole("longest", longest, 1)
    check_whole("buffer", buffer, 1)
    check_unit(unit)
    if buffer > longest:
        raise ValueError(f"buffer: expected at most longest = {longest}, got {buffer}")


def length(
    completions: Sequence[Any],
    completion_ids: Sequence[Sequence[int]] | None = None,
    target_length: int | Sequence[int] | None = None,
    shortest: int = 0,
    longest: int = 0,
    falloff: int = 0,
    unit: str = "tokens",
    **columns: Any,
) -> list[float]:
    """0 from `shortest` to `longest`, falling linearly to -1 at a distance of `falloff`, -1 beyond.

    longest = 0 means no upper bound. falloff = 0 uses the bound itself: -1 for an empty completion, and for one twice as long as
    `longest`. `target_length` sets both bounds, for all rows or, as a column, for each row. Lengths are in sampled tokens, including
    the stop token, or with unit = "characters" in characters.
    """
    check_length((), target_length, shortest, longest, falloff, unit)
    found = measure_sizes(completions, completion_ids, unit)
    targets = [target_length] * len(found) if isinstance(target_length, int | None) else list(target_length)
    bounds = [(shortest, longest) if target is None else (target, target) for target in targets]
    return [penalise_outside(size, low, high, falloff) for size, (low, high) in zip(found, bounds, strict=True)]


def check_length(
    columns: Sequence[str],
    target_length: int | Sequence[int] | None = None,
    shortest: int = 0,
    longest: int = 0,
    falloff: int = 0,
    unit: str = "tokens",
) -> None:
    """Raise ValueError for bounds that contradict each other or are missing, before a completion exists."""
    check_whole("falloff", falloff, 0)
    check_unit(unit)
    if target_length is None and "target_length" not in columns:
        penalise_outside(0, shortest, longest, falloff)
    elif shortest or longest:
        raise ValueError("target_length: it sets both bounds; leave out shortest and longest, or target_length")
    elif isinstance(target_length, int):
        penalise_outside(0, target_length, target_length, falloff)


def penalise_outside(size: int, shortest: int, longest: int, falloff: int) -> float:
    check_whole("shortest", shortest, 0)
    check_whole("longest", longest, 0)
    if not shortest and not longest:
        raise ValueError("length: set target_length, longest or shortest (at least 1)")
    if longest and shortest > longest:
        raise ValueError(f"shortest: expected at most longest = {longest}, got {shortest}")
    if size < shortest:
        return fall_linearly(shortest - size, falloff or shortest)
    return fall_linearly(size - longest, falloff or longest) if longest else 0.0


def measure_sizes(completions: Sequence[Any], completion_ids: Sequence[Sequence[int]] | None, unit: str) -> list[int]:
    if unit == "characters":
        return [len(text_of(completion)) for completion in completions]
    if completion_ids is None:
        raise ValueError('completion_ids: needed to count tokens; pass them, or set unit = "characters"')
    if len(completion_ids) != len(completions):
        raise ValueError(f"completion_ids: {len(completion_ids)} lists of token ids for {len(completions)} completions")
    return [len(ids) for ids in completion_ids]


def check_unit(unit: Any) -> None:
    if unit not in ("tokens", "characters"):
        raise ValueError(f'unit: expected "tokens" or "characters", got {unit!r}')


def check_whole(name: str, value: Any, low: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise ValueError(f"{name}: expected a whole number from {low} up, got {value!r}")


# ---------------------------------------------------------------------------------------------------------------------
# Repetition
# ---------------------------------------------------------------------------------------------------------------------

LONG_WORD = 30
"""A longer run of letters and digits is not a word ("aaaa...", long hexadecimal): its characters are units instead."""
RUN = re.compile(r"(.)\1{0,19}", re.DOTALL)
"""Up to twenty equal signs are one unit, so that a line under a heading is no repetition and a page of "!" is."""
KINDS = re.compile(r"(?P<word>[wm]+)|(?P<letter>cm{0,9})|(?P<signs>o+)|(?P<spaces>s{80})|s+")
"""For a text whose characters are replaced by their kinds. Only long runs of white space count."""


def repetition(
    completions: Sequence[Any], ngram: int = 12, threshold: float = 0.2, max_penalty: float = 1.0, **columns: Any
) -> list[float]:
    """0 down to -max_penalty for the share of n-grams that occurred earlier in the completion.

    There is no penalty up to `threshold` (ordinary prose and code stay below it); from there it rises linearly to max_penalty at
    share 1. An n-gram is `ngram` consecutive units: words, signs, and single letters in scripts without spaces. A completion that
    hits the part's time limit scores 0, the best score here, so no text may take long.
    """
    check_repetition((), ngram, threshold, max_penalty)
    shares = [measure_repetition(text_of(completion)[-MAX_CHARS:], ngram) for completion in completions]
    return [max_penalty * fall_linearly(share - threshold, 1 - threshold) for share in shares]


def check_repetition(columns: Sequence[str], ngram: int = 12, threshold: float = 0.2, max_penalty: float = 1.0) -> None:
    check_whole("ngram", ngram, 1)
    if not 0 <= threshold < 1:
        raise ValueError(f"threshold: expected a share from 0 to below 1, got {threshold!r}")
    if not (math.isfinite(max_penalty) and max_penalty > 0):
        raise ValueError(f"max_penalty: expected a number above 0, got {max_penalty!r}")


def measure_repetition(text: str, ngram: int) -> float:
    """1 - distinct / all n-grams; 0 for a text with fewer than `ngram` units.

    Each n-gram is numbered by two overlapping shorter ones, so the count is exact and takes log2(n) passes.
    """
    numbers, distinct = number_items(split_units(text))
    size = 1
    while size < ngram:
        shift = min(size, ngram - size)
        numbers, distinct = number_items(zip(numbers, numbers[shift:], strict=False))
        size += shift
    return 1 - distinct / len(numbers) if numbers else 0.0


def number_items(items: Iterable[Hashable]) -> tuple[list[int], int]:
    """(a number for each item, the same for equal items; number of distinct items)."""
    seen: dict[Hashable, int] = {}
    return [seen.setdefault(item, len(seen)) for item in items], len(seen)


def split_units(text: str) -> list[str]:
    """The units that a reader would see repeated: words in lower case, single letters of unspaced scripts, runs of signs."""
    text = text.lower()
    found: list[str] = []
    for run in KINDS.finditer(text.translate({ord(character): find_kind(character) for character in set(text)})):
        piece = text[run.start() : run.end()]
        if run.lastgroup == "word" and len(piece) > LONG_WORD:
            found.extend(piece)
        elif run.lastgroup == "signs":
            found.extend(signs.group() for signs in RUN.finditer(piece))
        elif run.lastgroup == "spaces":
            found.append(" ")
        elif run.lastgroup:
            found.append(piece)
    return found


def find_kind(character: str) -> str:
    """s: white space, m: mark, c: letter of a script without spaces, w: other letters and digits, o: any other sign."""
    if character.isspace():
        return "s"
    if is_mark(character):
        return "m"
    script = find_script(character)
    if script in UNSPACED:
        return "c"
    return "w" if script or character.isalnum() else "o"


soft_overlong.reads = ("completions", "completion_ids")  # type: ignore[attr-defined]
soft_overlong.per_completion = True  # type: ignore[attr-defined]
soft_overlong.check_arguments = check_overlong  # type: ignore[attr-defined]
length.reads = ("completions", "completion_ids", "target_length")  # type: ignore[attr-defined]
length.per_completion = True  # type: ignore[attr-defined]
length.check_arguments = check_length  # type: ignore[attr-defined]
repetition.reads = ("completions",)  # type: ignore[attr-defined]
repetition.per_completion = True  # type: ignore[attr-defined]
repetition.check_arguments = check_repetition  # type: ignore[attr-defined]
