"""The frame of a page: one self-contained file that loads nothing, made of sections that cannot take each other down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any, TypeVar

from cohort.observe.report.style import CSS, SCRIPT, content_security_policy

Subject = TypeVar("Subject")


def frame(title: str, sections: Sequence[Callable[[Subject], str]], subject: Subject, more_css: str = "") -> str:
    """The sections of `subject`, one below the other, as a whole page."""
    body = "\n".join(safely(section, subject) for section in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{content_security_policy()}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" content="no-referrer">'
        f"<title>{text(title)}</title><style>{CSS}{more_css}</style></head>\n<body><main>\n{body}\n</main>"
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def safely(section: Callable[[Subject], str], subject: Subject) -> str:
    """A file of unexpected shape costs one section, never the page."""
    try:
        return section(subject)
    except Exception as problem:
        name = section.__name__.replace("_", " ")
        return f'<p class="none">The section “{name}” could not be written: {text(type(problem).__name__)}: {text(problem)}</p>'


def text(value: Any) -> str:
    return escape(str(value), quote=True)
