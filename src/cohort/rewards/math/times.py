r"""Times of the day and dates: 9:30, 14:30, 9:30 p.m., noon. Two of them are equal only as times, never in proportion as ratios are.

9:30 by itself may be a ratio, so it is read as one; what is written on both sides decides. Where only one side names its half of the
day, the hours 0 and 13 to 24 say it too (14:30 is 2:30 pm), and a gold that leaves it open takes either.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cohort.rewards.math.kinds import Group, Shape, Value, Words
from cohort.rewards.math.levels import spelled
from cohort.rewards.math.text import LETTERS, TEXT, Token
from cohort.rewards.math.tree import number

MAX_CLOCK_TOKENS = 16
CLOCK = re.compile(
    r"(\d{1,2})(?: ?: ?(\d\d)(?: ?: ?(\d\d))?)? ?"
    r"(?:([ap]) ?m|(noon|midnight)|o ?' ?clock(?: ([ap]) ?m)?|in the (?:(morning)|afternoon|evening))"
)
NAMED = {"noon": "12:00:00 pm", "midnight": "12:00:00 am"}
SPELLED = re.compile(r"(\d+):(\d\d):(\d\d) ([ap]m)")
HOUR, SIXTIETH = re.compile(r"\d|[01]\d|2[0-4]"), re.compile(r"[0-5]\d")


@dataclass(frozen=True)
class Time:
    hour: int
    rest: tuple[int, ...]
    """Minutes, and seconds where they are written."""
    half: str = ""
    """am, pm, or "" where it is not said."""

    @property
    def day_hour(self) -> int | None:
        """The hour of 24; None where it may be in either half of the day."""
        if self.half:
            return self.hour % 12 + 12 * (self.half == "pm")
        return self.hour if self.hour == 0 or self.hour > 12 else None


def read_clock(tokens: Sequence[Token], depth: int) -> Shape | None:
    """9:30 PM, 9 p.m., 12 noon, 9:30 in the morning as one spelling; 5 o'clock as 5:00."""
    if len(tokens) > MAX_CLOCK_TOKENS or not any(token.kind in (TEXT, LETTERS) for token in tokens):
        return None
    text = " ".join(" ".join(spelled(tokens)).replace(".", " ").lower().split())
    if text in NAMED:
        return Words(NAMED[text])
    found = CLOCK.fullmatch(text)
    if found is None:
        return None
    hour, minutes, seconds, letter, named, later_letter, morning = found.groups()
    if int(hour) > 12 or not all(SIXTIETH.fullmatch(part) for part in (minutes, seconds) if part):
        return None
    letter = letter or later_letter or {"noon": "p", "midnight": "a"}.get(named or "") or ("a" if morning else "")
    if named and (int(hour) != 12 or int(minutes or 0) or int(seconds or 0)):
        return None
    if not letter and "clock" in text:
        return Group(":", tuple(Value(part, number(int(part))) for part in (hour, "00")))
    return Words(f"{int(hour)}:{minutes or '00'}:{seconds or '00'} {letter or 'p'}m")


DATE = re.compile(r"(?:([12]\d{3})([-/.])(\d\d?)\2(\d\d?)|(\d\d?)([-/.])(\d\d?)\6([12]\d{3}))")


def read_date(tokens: Sequence[Token], depth: int) -> Shape | None:
    """2024-01-02, 1/2/2024, 1.2.2024: equal number by number, never as quotients or differences."""
    found = DATE.fullmatch("".join(token.text for token in tokens)) if len(tokens) < 6 else None
    if found is None or any(token.spaced for token in tokens[1:]):
        return None
    parts = [int(part) for part in found.groups() if part and part.isdecimal()]
    days = [part for part in parts if part < 1000]
    return Words("/".join(map(str, parts))) if 0 < min(days) <= 12 and max(days) <= 31 else None


def time_of(shape: Shape) -> Time | None:
    """The time that an answer is: h:mm or h:mm:ss with two digits below 60, or what `read_clock` spelled."""
    if isinstance(shape, Words):
        found = SPELLED.fullmatch(shape.text)
        return Time(int(found[1]), (int(found[2]), int(found[3])), found[4]) if found else None
    if not isinstance(shape, Group) or shape.kind != ":" or len(shape.items) not in (2, 3):
        return None
    texts = [item.text for item in shape.items if isinstance(item, Value) and not item.unit]
    if len(texts) < len(shape.items) or not HOUR.fullmatch(texts[0]) or not all(map(SIXTIETH.fullmatch, texts[1:])):
        return None
    return Time(int(texts[0]), tuple(map(int, texts[1:])))


def same_time(found: Time, gold: Time) -> bool:
    if not found.half and not gold.half:
        return (found.hour, found.rest) == (gold.hour, gold.rest)
    # With its half of the day a time has hours in front, so seconds may be left out.
    if (*found.rest, 0)[:2] != (*gold.rest, 0)[:2]:
        return False
    if gold.day_hour is None:  # the gold leaves the half of the day open
        return found.hour == gold.hour
    return found.day_hour is not None and found.day_hour % 24 == gold.day_hour % 24


NO_RATIO = re.compile(r"0\d*")
"""0, 00 and 05 are parts of a time: nothing is in proportion to nothing, and no ratio is written with leading zeros."""


def is_of_time(part: Value) -> bool:
    return NO_RATIO.fullmatch(part.text) is not None
