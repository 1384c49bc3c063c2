"""Pages from templates: one self-contained file that loads nothing, made of sections that cannot take each other down.

A section is a function that names a macro of parts.html and gives its values; this is the one place that makes an environment.
Whatever a template is given is escaped, and what would steer a terminal is written out: names, completions and files of strangers are
text. Only what is `Markup` is taken as it is, and nothing that came from outside ever is.
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
"""A macro of parts.html, and the values it is given."""
Section = str | Callable[[Subject], Part | None]
"""A macro that is given what the page is about, or a function that names one with its values; None leaves the section out."""


@dataclass(frozen=True)
class Cell:
    """What stands in one place of a table."""

    text: str = ""
    small: str = ""
    """Beside the text."""
    note: str = ""
    """Below the text."""
    style: str = ""
    colour: int | None = None
    """Of a square before the text."""
    bar: float | None = None
    """Width of a bar, in percent of the column."""
    span: int = 1


@cache
def make_environment(folder: Path = HERE) -> Environment:
    """The templates of a folder, which can import those of the report as report/NAME."""
    return Environment(
        loader=ChoiceLoader([FileSystemLoader(folder), PrefixLoader({"report": FileSystemLoader(HERE)})]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else shorten_text(str(value), 0),
    )


def render_page(title: str, sections: Sequence[Section[Subject]], subject: Subject) -> str:
    """The sections of `subject` one below the other, as a whole page."""
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
    """Colours and drawings, which a drawing takes along where it becomes a file, then the rest of a page."""
    return "".join((HERE / name).read_text(encoding="utf-8") for name in ("drawing.css", "page.css"))


def render_section(section: Section[Subject], subject: Subject) -> Markup:
    """One section. A file of unexpected form costs one section, never the page."""
    try:
        part = (section, subject) if isinstance(section, str) else section(subject)
        return Markup() if part is None else render_part(*part)
    except Exception as problem:
        name = section if isinstance(section, str) else section.__name__
        return render_part("lost", name.replace("_", " "), problem)


def render_part(macro: str, *values: Any) -> Markup:
    return Markup(getattr(make_environment().get_template("parts.html").module, macro)(*values))
