"""A run as the dashboard reads it: the same questions as a report asks, answered from files that are bounded, kept and inside the shelf."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from cohort.algorithms.named import Own
from cohort.base.text import write_duration
from cohort.observe.report.data import RunData, as_number
from cohort.tools.dashboard.reader import MAX_TEXT, MEGABYTE, Reader, read_bounded, sample_rows
from cohort.tools.dashboard.shelf import ShownRun

GLANCED = ("step", "label", "sets", "reward/mean", "loss/total", "time/step", "kind", "stage", "done", "total")
"""What a list of runs shows of a row."""
QUIET_S = 300.0
"""Seconds without a word after which a run that nobody is seen to hold is not called running; more where its steps take long."""


class WatchedRun(RunData):
    """A run whose files are read as far as they are new."""

    def __init__(self, shown: ShownRun, reader: Reader) -> None:
        self.shown, self._reader = shown, reader
        self.losses: list[str] = []
        """What could not be shown of its files, in sentences."""
        super().__init__(shown.folder.root)

    served = True

    @property
    def name(self) -> str:
        return self.shown.title

    def read_rows(self, file: Path) -> list[dict[str, Any]]:
        place = self.shown.find_file(file)
        if place is None:
            return []
        found = self._reader.look(place)
        if loss := found.losses.describe(file.name):
            self.losses.append(loss)
        return found.rows

    def read_text(self, file: Path) -> str:
        place = self.shown.find_file(file)
        text = read_bounded(place) if place else ""
        if len(text) >= MAX_TEXT:
            self.losses.append(f"{file.name}: it is longer than {MAX_TEXT // MEGABYTE} MB, and was read to there.")
        return text

    def find_file(self, file: Path) -> Path | None:
        return self.shown.find_file(file)

    def read_own_functions(self) -> tuple[Own, str]:
        if self.shown.find_file(self.folder.own_file) is None:
            return {}, ""
        own, problem = super().read_own_functions()
        return own, "algorithm.json cannot be used; restore it as the run wrote it." if problem else ""

    @property
    def status(self) -> str:
        """What the summary says; a run that was killed has not said so."""
        told = super().status
        if told != "running":
            return told
        patience = max(QUIET_S, 10 * median(self.find_last_values("time/step") or [0.0]))
        return "running" if self.is_held or self.quiet_s < patience else "unfinished"

    @property
    def is_held(self) -> bool:
        """Whether a process of this machine holds the run."""
        return is_locked(self.folder.root / "run.lock")

    @property
    def quiet_s(self) -> float:
        """Seconds since the run wrote a number."""
        times = []
        for file in (
            self.folder.metrics_file,
            self.folder.evaluations_file,
            self.folder.events_file,
            self.folder.recipe_file,
        ):
            try:
                times.append(file.stat().st_mtime)
            except OSError:
                continue
        return max(0.0, time.time() - max(times)) if times else float("inf")

    def describe_quiet(self) -> str:
        """ "wrote 12 s ago"; "" where it never did."""
        return f"wrote {write_duration(self.quiet_s)} ago" if self.quiet_s < float("inf") else ""

    def describe_now(self) -> str:
        """ "cold start, 120 of 2,000": what a run that trains was last heard to do; "" where it does not say."""
        told: Mapping[str, Any] = next(
            (event for event in reversed(self.events) if event.get("kind") in ("stage", "progress")), {}
        )
        return describe_stage(told) if self.status == "running" else ""


def describe_stage(event: Mapping[str, Any]) -> str:
    """The stage that an event is about, and how far it is."""
    done, total = as_number(event.get("done")), as_number(event.get("total"))
    far = f", {done:,.0f} of {total:,.0f}" if done is not None and total else ""
    return f"{event['stage']}{far}" if isinstance(event.get("stage"), str) else ""


class GlancedRun(WatchedRun):
    """A run in a list of many: of its rows a few, from its beginning to its end."""

    def read_rows(self, file: Path) -> list[dict[str, Any]]:
        if file not in (self.folder.metrics_file, self.folder.evaluations_file, self.folder.events_file):
            return []
        place = self.shown.find_file(file)
        rows = sample_rows(place) if place else []
        return [{name: value for name, value in row.items() if name in GLANCED} for row in rows]


def is_locked(file: Path) -> bool:
    """Whether any process of this machine holds the file; asked of the kernel, because trying would hold it."""
    try:
        found = file.stat()
        held = Path("/proc/locks").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    return re.search(rf"\bFLOCK\b.* {device} ", held) is not None
