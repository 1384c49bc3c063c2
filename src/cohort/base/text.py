"""Text that came from outside, made fit to be shown."""

from __future__ import annotations

import re

CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Everything that moves a cursor, colours a terminal, reorders a line or cannot be written; newlines and tabs may stay."""


def printable(text: str) -> str:
    r"""The text with control characters written out (\x1b): model text and exceptions must not steer a terminal."""
    return CONTROLS.sub(lambda found: found.group().encode("unicode_escape").decode(), text)
