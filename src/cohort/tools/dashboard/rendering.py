"""Sections to HTML: the report's frame with the dashboard's macros before the report's, and addresses to download each drawing and table."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Template
from markupsafe import Markup

from cohort.errors import CohortError
from cohort.observe.report.frame import Part, make_environment
from cohort.tools.dashboard.downloads import add_downloads
from cohort.tools.dashboard.view import Page, View

HERE = Path(__file__).resolve().parent
PATH = re.compile(r"(?<![\w.])/(?:[^\s/:'\"]+/)+")
"""The folders of an absolute path."""
SCRIPTS = ("hover.js", "live.js")
"""Of every page."""


@cache
def list_templates() -> list[Template]:
    """Where macros are looked for: every parts*.html here, then that of the report."""
    environment = make_environment(HERE)
    names = [file.name for file in sorted(HERE.glob("parts*.html"))]
    return [environment.get_template(name) for name in [*names, "report/parts.html"]]


def render_part(macro: str, *values: Any, **words: Any) -> Markup:
    """A macro of the first template that has it; words that it does not take are left out."""
    found = next(template.module for template in list_templates() if hasattr(template.module, macro))
    written = getattr(found, macro)
    return Markup(written(*values, **{word: value for word, value in words.items() if word in written.arguments}))


def list_parts(page: Page) -> list[tuple[str, Part]]:
    """(name, macro with its values) of every section that has something to show."""
    found = []
    for section in page.sections:
        name, part = "", None
        try:
            if isinstance(section, tuple):
                name, part = str(section[0]), section
            elif isinstance(section, str):
                name, part = section, (section, page.data)
            else:
                name = section.__name__
                part = section(page.data)
        except Exception as problem:  # a file of unexpected form costs one section, never the page
            part = ("lost", name.replace("_", " "), describe_quietly(problem))
        if part is not None:
            found.append((name, part))
    return found


def describe_quietly(problem: Exception) -> str:
    """What went wrong; of a path of this machine the last word alone."""
    return PATH.sub("", str(problem)) if isinstance(problem, CohortError) else type(problem).__name__


def render_sections(page: Page, view: View) -> str:
    """The sections of a page one below the other, each in an element that can be replaced on its own."""
    written, names = [], Counter[str]()
    found = list_parts(page)
    linked = add_downloads([part for _, part in found], view)
    for (name, _), (part, words) in zip(found, linked, strict=True):
        try:
            body = render_part(*part, **words)
        except Exception as problem:
            body = render_part("lost", name.replace("_", " "), describe_quietly(problem))
        names[name] += 1
        written.append(Markup('<section class="part" id="part-{}-{}">{}</section>\n').format(name, names[name], body))
    return Markup().join(written)


def render_frame(page: Page, view: View, sections: str, etag: str = "") -> str:
    frame = make_environment(HERE).get_template("frame.html")
    scripts = [*SCRIPTS, *page.scripts]
    return frame.render(
        title=page.title, view=view, sections=Markup(sections), live=page.live, etag=etag, scripts=scripts, styles=page.styles
    )
