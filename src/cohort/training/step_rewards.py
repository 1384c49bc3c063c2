r"""Process supervision: from characters, in which reward functions speak of steps, to the sampled tokens that are trained.

    completion  "3+9=12\n>12"  sampled as  3 · + · 9 · = · 12 · \n · > · 12 · <eos>
    Outcome.steps  ((7, 1.0), (10, 0.0))   ->   locate_steps  ((5, 1.0), (8, 0.0))

Nothing is tokenised again: the sampled ids are decoded, a few more each time, until the text is long enough.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from cohort.types import Completion

Decode = Callable[[Sequence[int]], str]

REPLACEMENT = "\ufffd"
"""What bytes that do not make a character, or do not make one yet, decode to."""
BYTES = 4
"""The most bytes, and so the most tokens, of one character."""
WINDOW = 64
"""Tokens between two cuts: prefixes of a window are cheap to decode, prefixes of a long completion are not."""
WINDOW_SLACK = 16
"""How many tokens later a cut may come, so as not to fall into a character."""


def locate_steps(completion: Completion, steps: Sequence[tuple[int, float]], decode: Decode) -> tuple[tuple[int, float], ...]:
    """`Outcome.steps` with token indices in place of characters: of the token with which the text reaches the end of the step.

    A token that ends one step and begins the next belongs to the one it ends; two steps may end with the same token. A step that
    ends with the text belongs to the last token, the stop token included: to stop there was a part of that step. The cost does not
    grow with the square of the completion.
    """
    text, ids = completion.text, completion.token_ids
    cuts = find_cuts(completion, decode) if steps else []
    characters = [character for _, character in cuts]
    found: list[tuple[int, float]] = []
    for position, reward in steps:
        check_position(completion, position)
        token = len(ids) - 1
        if position < len(text):
            cut = bisect_left(characters, position) - 1
            start, character = cuts[cut]
            end = cuts[cut + 1][0] if cut + 1 < len(cuts) else len(ids)
            token = start + find_end(ids[start:end], text[character:position], decode)
        found.append((token, reward))
    return tuple(found)


def find_end(ids: Sequence[int], wanted: str, decode: Decode) -> int:
    """Index of the first token with which the ids have decoded to `wanted`, by binary search over their prefixes.

    To compare the text and not its length matters where a character is split over tokens: its first bytes decode to one
    or several replacement characters, so that the length of a prefix can reach the goal too early, or even shrink.
    """

    def reached(index: int) -> bool:
        return decode(ids[: index + 1]).startswith(wanted)

    low, high = 0, len(ids) - 1
    while low < high:
        middle = (low + high) // 2
        if reached(middle):
            high = middle
        else:
            low = middle + 1
    # Some decoders show a whole run of bytes as replacement characters while its last character is not complete, and
    # the search may have met that: look for an earlier end, across the tokens that one character can be short of.
    while (earlier := next((i for i in range(low - 1, low - BYTES - 1, -1) if i >= 0 and reached(i)), None)) is not None:
        low = earlier
    # A replacement character that is really in the text looks like its own first byte: go on to its last.
    while wanted.endswith(REPLACEMENT) and low + 1 < len(ids) and decode(ids[: low + 2]) == wanted:
        low += 1
    return low


def find_cuts(completion: Completion, decode: Decode) -> list[tuple[int, int]]:
    """(tokens, characters) before places at which ids and text can be cut alike: the pieces decode to the whole text.

    Where they do not, as with decoders that drop the space a text begins with, there is one piece, the completion.
    """
    text, ids = completion.text, completion.token_ids
    cuts = [(0, 0)]
    while (following := find_next_cut(text, ids, cuts[-1], decode)) is not None:
        cuts.append(following)
    start, character = cuts[-1]
    return cuts if decode(ids[start:]) == text[character:] else cuts[:1]


def find_next_cut(text: str, ids: Sequence[int], cut: tuple[int, int], decode: Decode) -> tuple[int, int] | None:
    start, character = cut
    for end in range(start + WINDOW, min(start + WINDOW + WINDOW_SLACK, len(ids))):
        piece = decode(ids[start:end])
        if text.startswith(piece, character) and not piece.endswith(REPLACEMENT):
            return end, character + len(piece)
    return None


def check_position(completion: Completion, position: int) -> None:
    length = len(completion.text)
    if not completion.token_ids or not min(1, length) <= position <= length:
        raise ValueError(
            f"position {position} is not in a completion of {length} characters and {len(completion.token_ids)} tokens; "
            f"a step ends at a character of the text, from {min(1, length)} to {length}."
        )
