"""The input and output of a page function: an address as plain strings, and a list of sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from cohort.errors import NotFound
from cohort.observe.report.frame import Part, Section


@dataclass(frozen=True)
class View:
    """A parsed address."""

    path: str
    """Without the prefix of sections and downloads: /run/NAME."""
    params: Mapping[str, str] = field(default_factory=dict)
    """Path parameters by name."""
    query: Sequence[tuple[str, str]] = ()

    def read(self, name: str) -> str:
        """The first value of this name in the query; "" if there is none."""
        return next((value for key, value in self.query if key == name), "")

    def read_all(self, name: str) -> list[str]:
        return [value for key, value in self.query if key == name]

    def choose(self, name: str, choices: Sequence[str]) -> str:
        """The value in the query if it is one of the choices, else the first choice."""
        value = self.read(name)
        return value if value in choices else choices[0]

    def read_number(self, name: str, default: int = 0, least: int = 0, most: int = 2**31) -> int:
        """A whole number from the path or the query, clamped to the bounds; raises NotFound for other text."""
        text = self.params.get(name, self.read(name))
        if not text:
            return default
        if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 12):
            raise NotFound(f"{name}: give a whole number.")
        return min(max(int(text), least), most)

    def link(self, path: str = "", **changes: str | int | Sequence[str] | None) -> str:
        """This address with changed query values (None removes one); with a path, that path with only these values."""
        words = [] if path else [(key, value) for key, value in self.query if key not in changes]
        for key, value in changes.items():
            if value is not None:
                words += [(key, str(one)) for one in ([value] if isinstance(value, str | int) else value)]
        return write_address(path or self.path, words)


def write_address(path: str, query: Sequence[tuple[str, str]] = ()) -> str:
    """An address on this server."""
    return quote(path, safe="/~") + (f"?{urlencode(query)}" if query else "")


@dataclass(frozen=True)
class Page:
    """The result of a page function."""

    title: str
    sections: Sequence[Section[Any] | Part]
    """As in report/frame.py: names of macros, functions of `data` that return a macro's name and values, or such a name with its values.
    Macros are in parts*.html here or in the report's parts.html."""
    data: Any = None
    """The argument of section functions."""
    live: bool = False
    """Whether the open page polls for changes."""
    aging: bool = False
    """Whether the page shows a time or the status "running", so that it changes even if no file does."""
    scripts: Sequence[str] = ()
    """Additional modules of static/."""
    styles: Sequence[str] = ()
    """Additional style sheets of static/."""
    status: int = 200
