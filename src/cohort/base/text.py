"""Text that came from outside, made fit to be shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Everything that moves a cursor, colours a terminal, reorders a line or cannot be written; newlines and tabs may stay."""


LONE = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair: what is left of an emoji cut in two, or of bytes that are no UTF-8. No file can hold it."""


def has_lone_surrogate(value: Any) -> bool:
    """Whether a text, or one inside of lists and tables, holds what UTF-8 cannot write."""
    if isinstance(value, str):
        return not value.isascii() and LONE.search(value) is not None
    if isinstance(value, Mapping):
        return any(has_lone_surrogate(key) or has_lone_surrogate(inner) for key, inner in value.items())
    return isinstance(value, list | tuple) and any(map(has_lone_surrogate, value))


def writable(value: Any) -> Any:
    """The value with U+FFFD in place of each lone surrogate, in texts inside of lists and tables too."""
    if not has_lone_surrogate(value):
        return value
    if isinstance(value, str):
        return LONE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, Mapping):
        return {writable(key): writable(inner) for key, inner in value.items()}
    return [writable(inner) for inner in value]


def printable(text: str) -> str:
    r"""The text with control characters written out (\x1b): model text and exceptions must not steer a terminal."""
    return CONTROLS.sub(lambda found: found.group().encode("unicode_escape").decode(), text)
