"""report.html: one self-contained file that says whether the run worked, and shows why one should believe it.

It is written from the run folder alone, works on an unfinished or nearly empty run, and never needs the network. Plots are
hand-made SVG rather than plotly: inlined, plotly.js makes every report 4.5 MB that a phone parses for seconds and a mail
server refuses, for plots that need lines, bands and a hover. These reports are a few hundred kilobytes, print well, and
show their plots with JavaScript switched off.

Model output is untrusted. It is escaped everywhere, and a Content-Security-Policy that allows exactly one script, by its
hash, and no other resource stands behind the escaping.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from cohort.errors import RunError
from cohort.observe.report import overlay
from cohort.observe.report.data import load_run
from cohort.observe.report.page import render

__all__ = ["write_overlay", "write_report"]


def write_report(run_folder: str | Path) -> Path:
    """Write report.html into the run folder and return its path. Atomic: an older report stays whole until then."""
    folder = Path(run_folder)
    if not folder.is_dir():
        raise RunError(f"{folder} is not a run folder")
    return write_page(folder / "report.html", render(load_run(folder)))


def write_overlay(run_folders: Sequence[Path], target: Path) -> Path:
    """Write one page of several runs and return its path."""
    return write_page(target, overlay.render(overlay.load_overlay(run_folders)))


def write_page(target: Path, page: str) -> Path:
    temporary = target.with_name(f"{target.name}.tmp")
    temporary.write_text(page, encoding="utf-8", errors="replace")
    os.replace(temporary, target)
    return target
