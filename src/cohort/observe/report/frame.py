"""Pages from templates: one self-contained file that loads nothing. A failing section does not affect the others.

A section is a function that returns the name of a macro of parts.html and its values. All values are escaped, and control characters are
written out, since names, completions and files are untrusted. Only `Markup` is inserted as it is; untrusted text never becomes `Markup`.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PrefixLoader, StrictUndefined
from markupsafe import Markup

from cohort.base.text import shorten_text

HERE = Path(__file__).resolve().parent
Subject = TypeVar("Subject")
Part = tuple[Any, ...]
"""A macro of parts.html and its values."""
Section = str | Callable[[Subject], Part | None]
"""A macro that takes the subject of the page, or a function that returns a macro and its values, or None to leave the section out."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table."""

    text: str = ""
    small: str = ""
    """Small text after the text."""
    note: str = ""
    """Small text below the text."""
    style: str = ""
    colour: int | None = None
    """Colour of a square before the text."""
    bar: float | None = None
    """Width of a bar, as a percentage of the column."""
    span: int = 1


@cache
def make_environment(folder: Path = HERE) -> Environment:
    """The templates of a folder; they can import the report's as report/NAME."""
    return Environment(
        loader=ChoiceLoader([FileSystemLoader(folder), PrefixLoader({"report": FileSystemLoader(HERE)})]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else shorten_text(str(value), 0),
    )


def render_page(title: str, sections: Sequence[Section[Subject]], subject: Subject) -> str:
    """A complete page with the sections of `subject`."""
    script = (HERE / "hover.js").read_text(encoding="utf-8")
    frame = make_environment().get_template("frame.html")
    return frame.render(
        title=title,
        css=Markup(read_styles()),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii"),
        sections=[render_section(section, subject) for section in sections],
    )


def read_styles() -> str:
    """The styles of a page: first those of drawings, which are also used in downloaded SVG files."""
    return "".join((HERE / name).read_text(encoding="utf-8") for name in ("drawing.css", "page.css"))


def render_section(section: Section[Subject], subject: Subject) -> Markup:
    """One section. A malformed file costs one section, never the page."""
    try:
        part = (section, subject) if isinstance(section, str) else section(subject)
        return Markup() if part is None else render_part(*part)
    except Exception as problem:
        name = section if isinstance(section, str) else section.__name__
        return render_part("lost", name.replace("_", " "), problem)


def render_part(macro: str, *values: Any) -> Markup:
    return Markup(getattr(make_environment().get_template("parts.html").module, macro)(*values))
