"""Formats text, numbers and tables for people; escapes text from outside. Light: nothing heavy is imported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that move the cursor, colour the terminal, reorder a line or cannot be encoded; newlines and tabs are allowed."""


LONE = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair: from an emoji cut in two, or from bytes that are not UTF-8. It cannot be written to a file."""


SHORT = 20
"""Up to this length, a shortened text is only the beginning of the text."""


def has_lone_surrogate(value: Any) -> bool:
    """Whether a text, also inside lists and dicts, contains half of a surrogate pair."""
    if isinstance(value, str):
        return not value.isascii() and LONE.search(value) is not None
    if isinstance(value, float | int | None):  # most logged values are numbers
        return False
    if isinstance(value, Mapping):
        return any(map(has_lone_surrogate, chain(value, value.values())))
    return isinstance(value, list | tuple) and any(map(has_lone_surrogate, value))


def make_writable(value: Any) -> Any:
    """The value with U+FFFD instead of each lone surrogate, also inside lists and dicts."""
    if not has_lone_surrogate(value):
        return value
    if isinstance(value, str):
        return LONE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, Mapping):
        return {make_writable(key): make_writable(inner) for key, inner in value.items()}
    return [make_writable(inner) for inner in value]


def make_printable(text: str) -> str:
    r"""The text with control characters escaped (\x1b): model text and exceptions must not control the terminal."""
    return CONTROLS.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def shorten_text(text: str, most: int, one_line: bool = False) -> str:
    r"""The printable text, reduced to its beginning and end if it is longer than `most` characters (0: no limit).

    one_line: newlines and tabs are escaped too.
    """
    safe = make_printable(text.replace("\r\n", "\n"))
    if most and len(safe) > most:
        head, tail = safe[: most * 2 // 3], safe[-(most // 3) :]
        left_out = len(safe) - len(head) - len(tail)
        safe = f"{head} … {left_out:,} characters left out … {tail}" if most > SHORT else f"{safe[: most - 1]}…"
    return safe.replace("\n", "\\n").replace("\t", "\\t") if one_line else safe


def write_percent(share: float, digits: int | None = None) -> str:
    """ "54 %", and below 10 % "5.4 %"; or with a fixed number of decimal `digits`."""
    if digits is None:
        digits = 0 if share >= 0.1 or share == 0 else 1
    return f"{100 * share:.{digits}f} %"


def write_duration(seconds: float) -> str:
    """ "48 s", "12 min", "3 h 05 min"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def write_seconds(seconds: float) -> str:
    """ "1.25 s", and below one second "310 ms"."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def write_count(number: int, noun: str) -> str:
    """ "1 step", "3 steps"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def write_rate(rate: float) -> str:
    """ "950 tok/s", "8.4k tok/s"."""
    return f"{rate / 1000:.1f}k tok/s" if rate >= 1000 else f"{rate:.0f} tok/s"


def write_estimate(value: float | None, low: float | None, high: float | None, share: bool = True) -> tuple[str, str]:
    """A value and its interval as text: ("54.1 %", "[50.2, 58.0]"), or ("0.541", "") if it is not a share; a dash for no value."""
    if value is None:
        return "–", ""
    scale, digits = (100, 1) if share else (1, 3)
    interval = "" if low is None or high is None else f"[{scale * low:.{digits}f}, {scale * high:.{digits}f}]"
    return f"{scale * value:.{digits}f}{' %' if share else ''}", interval


def make_table(heads: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1, gap: int = 2) -> Table:
    """A table for `console.print`. The first `texts` columns are left-aligned and can wrap; the others are right-aligned numbers.

    Cells are plain text, never markup: names of sets, runs and files may contain brackets or control characters.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for place, head in enumerate(heads):
        justify: Any = "left" if place < texts else "right"
        table.add_column(Text(make_printable(head)), justify=justify, no_wrap=place >= texts, overflow="fold")
    for cells in rows:
        table.add_row(*(Text(make_printable(cell)) for cell in cells))
    return table
