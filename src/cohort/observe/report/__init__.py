"""report.html: one self-contained file that says whether the run worked, and shows why one should believe it.

It is written from the run folder alone, works on an unfinished or nearly empty run, and never needs the network. Plots are
hand-made SVG rather than plotly: inlined, plotly.js makes every report 4.5 MB that a phone parses for seconds and a mail
server refuses, for plots that need lines, bands and a hover. These reports are a few hundred kilobytes, print well, and
show their plots with JavaScript switched off.

Model output is untrusted. It is escaped everywhere, and a Content-Security-Policy that allows exactly one script, by its
hash, and no other resource stands behind the escaping.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cohort.base.files import write_whole
from cohort.errors import RunError
from cohort.observe.report.data import RunData
from cohort.observe.report.overlay import load_overlay, render_overlay
from cohort.observe.report.page import render_report

__all__ = ["write_overlay", "write_report"]


def write_report(run_folder: str | Path) -> Path:
    """Write report.html into the run folder and return its path.

    Atomic: an older report stays whole until then.
    """
    folder = Path(run_folder)
    if not folder.is_dir():
        raise RunError(f"{folder} is not a run folder")
    return write_whole(folder / "report.html", render_report(RunData(folder)))


def write_overlay(run_folders: Sequence[Path], target: Path) -> Path:
    """Write one page of several runs and return its path."""
    return write_whole(target, render_overlay(load_overlay(run_folders)))
