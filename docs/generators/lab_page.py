"""docs/lab.html: the lab that needs no server, as `cohort report` writes it beside every report. No torch."""

from __future__ import annotations

from cohort.observe.report.lab import render_lab


def make_page() -> str:
    """The text of docs/lab.html."""
    return render_lab()
