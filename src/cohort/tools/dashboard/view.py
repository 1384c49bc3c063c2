"""What a page is asked for, and what it answers: plain strings in, sections out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from cohort.errors import NotFound
from cohort.observe.report.frame import Part, Section


@dataclass(frozen=True)
class View:
    """An address, taken apart."""

    path: str
    """Of the page, without the prefix of a fragment or a download: /run/NAME."""
    words: Mapping[str, str] = field(default_factory=dict)
    """The parameters of the path by name."""
    query: Sequence[tuple[str, str]] = ()

    def read(self, name: str, default: str = "") -> str:
        """The first value of that name in the query."""
        return next((value for key, value in self.query if key == name), default)

    def read_all(self, name: str) -> list[str]:
        return [value for key, value in self.query if key == name]

    def choose(self, name: str, choices: Sequence[str]) -> str:
        """One of the choices; the first where the query has none, or another word."""
        value = self.read(name)
        return value if value in choices else choices[0]

    def read_number(self, name: str, default: int = 0, least: int = 0, most: int = 2**31) -> int:
        """A whole number of the query or the path, held between the bounds; NotFound where it is none."""
        text = self.words.get(name, self.read(name))
        if not text:
            return default
        if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 12):
            raise NotFound(f"{name}: a whole number belongs there.")
        return min(max(int(text), least), most)

    def link(self, path: str = "", **changes: str | int | Sequence[str] | None) -> str:
        """The address of this view with other words in its query (None takes one out); with a path, that one and these words alone."""
        words = [] if path else [(key, value) for key, value in self.query if key not in changes]
        for key, value in changes.items():
            if value is not None:
                words += [(key, str(one)) for one in ([value] if isinstance(value, str | int) else value)]
        return write_address(path or self.path, words)


def write_address(path: str, query: Sequence[tuple[str, str]] = ()) -> str:
    """An address of this server."""
    return quote(path, safe="/~") + (f"?{urlencode(query)}" if query else "")


@dataclass(frozen=True)
class Page:
    """What a page function gives."""

    title: str
    sections: Sequence[Section[Any] | Part]
    """As in report/frame.py: macros of parts*.html here or of the report, functions of `data` that name one with its values, or a macro
    with its values as it is."""
    data: Any = None
    """What the sections are about."""
    live: bool = False
    """Whether the page follows what is written to its runs: then it is asked for again while it is looked at."""
    aging: bool = False
    """Whether it says how long ago a run wrote, or that it is running: then it is not true for ever though nothing is written."""
    scripts: Sequence[str] = ()
    """Modules of static/ that this page needs beside those of all pages."""
    styles: Sequence[str] = ()
    """Style sheets of static/, likewise."""
    status: int = 200
