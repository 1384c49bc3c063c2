"""The runs that the dashboard may show, and their files: size-limited, cached, and only from inside the given folders.

A run's name is looked up in a table of the folders found; it is never joined to a path. Links that lead out of the given folders are not followed.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cohort.algorithms.named import Own
from cohort.base.text import write_duration
from cohort.errors import NotFound
from cohort.observe.report.data import RunData, as_number, parse_recipe
from cohort.observe.run_folder import RunFolder
from cohort.tools.dashboard.reader import MAX_TEXT, MEGABYTE, Reader, read_bounded, sample_rows

MARKS = ("recipe.toml", "metrics.jsonl")
"""A folder with one of these files is a run."""
MAX_DEPTH = 3
"""Folder levels searched below a given folder: `cohort compare` keeps the runs it compares two levels down."""
MAX_FOLDERS = 20_000
"""Folders searched at most."""
FRESH_S = 2.0
"""Seconds before the folders are searched again."""
SAMPLED_KEYS = (
    "step",
    "label",
    "sets",
    "reward/mean",
    "loss/total",
    "time/step",
    "kind",
    "stage",
    "done",
    "total",
    "level",
    "what",
)
"""Keys of a row that the list of runs shows."""


@dataclass(frozen=True)
class ShownRun:
    """A run that may be shown."""

    name: str
    """Safe in an address: only letters, digits and ._~-"""
    title: str
    """Path below the given folder."""
    folder: RunFolder = field(compare=False)
    root: Path
    """The given folder; nothing outside of it is read."""

    def find_file(self, file: Path) -> Path | None:
        """The file with links resolved; None if it does not exist or lies outside the given folder."""
        try:
            place = file.resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            return None
        return place if place.is_file() and place.is_relative_to(self.root) else None

    def read_recipe(self) -> dict[str, Any]:
        """The recipe as plain values; {} if it cannot be read."""
        file = self.find_file(self.folder.recipe_file)
        return parse_recipe(read_bounded(file)) if file else {}

    @property
    def address(self) -> str:
        return f"/run/{self.name}"


class RunIndex:
    """The runs in the given folders, which are searched again when a page needs them."""

    def __init__(self, folders: Sequence[str | Path]) -> None:
        self.roots = [Path(folder).resolve() for folder in folders]
        self.reader = Reader()
        self.sampled: dict[str, tuple[str, SampledRun]] = {}
        """Cache of the list of runs: name -> (state of the run's files, the run)."""
        self._runs: dict[str, ShownRun] = {}
        self._made = -FRESH_S
        self._lock = threading.Lock()

    def list_runs(self, wanted: str = "") -> list[ShownRun]:
        """All runs, sorted by title. wanted: a name that starts a new search at once if it is unknown, for a run that has just begun."""
        with self._lock:
            if time.monotonic() - self._made >= FRESH_S or (wanted and wanted not in self._runs):
                self._runs = {run.name: run for run in find_runs(self.roots)}
                self._made = time.monotonic()
            return list(self._runs.values())

    def find(self, name: str) -> ShownRun:
        """The run with this name; raises NotFound if there is none, or no longer."""
        run = self._runs.get(name) or next((run for run in self.list_runs(name) if run.name == name), None)
        if run is None or not run.folder.root.is_dir():
            raise NotFound("The given folders contain no run with this name.")
        return run


def find_runs(roots: Sequence[Path]) -> list[ShownRun]:
    places: dict[Path, tuple[str, Path]] = {}
    for root in roots:
        for place in walk_runs(root):
            title = place.relative_to(root).as_posix() if place != root else root.name
            places.setdefault(place, (title, root))
    runs: dict[str, ShownRun] = {}
    for place, (title, root) in sorted(places.items(), key=lambda entry: entry[1][0]):
        name = re.sub(r"[^A-Za-z0-9_.~-]", "_", title.replace("/", "~"))[:120]
        if name in runs or name != title.replace("/", "~"):  # taken by another run, or shortened
            name = f"{name}~{hashlib.sha256(os.fsencode(place)).hexdigest()[:8]}"
        runs[name] = ShownRun(name, title, RunFolder(place), root)
    return list(runs.values())


def walk_runs(root: Path) -> Iterator[Path]:
    """The run folders at or below `root`. Links are followed if they stay inside; run folders are not searched further."""
    waiting, seen = [(root, 0)], {root}
    while waiting and len(seen) <= MAX_FOLDERS:
        folder, depth = waiting.pop()
        if any((folder / mark).is_file() for mark in MARKS):
            yield folder
            continue
        if depth == MAX_DEPTH:
            continue
        try:
            inner = [entry.path for entry in os.scandir(folder) if not entry.name.startswith(".") and entry.is_dir()]
        except OSError:
            continue
        for path in inner:
            try:
                place = Path(path).resolve(strict=True)
            except (OSError, RuntimeError):
                continue
            if place.is_relative_to(root) and place not in seen:
                seen.add(place)
                waiting.append((place, depth + 1))


# -- files of a run ----------------------------------------------------------------------------------------------------


class LiveRun(RunData):
    """A run whose growing files are parsed incrementally."""

    def __init__(self, shown: ShownRun, reader: Reader) -> None:
        self.shown, self._reader = shown, reader
        self.losses: list[str] = []
        """Messages about skipped parts of its files."""
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
            self.losses.append(f"{file.name}: longer than {MAX_TEXT // MEGABYTE} MB; only the beginning was read.")
        return text

    def find_file(self, file: Path) -> Path | None:
        return self.shown.find_file(file)

    def read_own_functions(self) -> tuple[Own, str]:
        if self.shown.find_file(self.folder.own_file) is None:
            return {}, ""
        own, problem = super().read_own_functions()
        return own, "algorithm.json cannot be used; restore the file that the run wrote." if problem else ""

    def describe_quiet(self) -> str:
        """ "wrote 12 s ago"; "" if it never wrote anything."""
        return f"wrote {write_duration(self.quiet_s)} ago" if self.quiet_s < float("inf") else ""

    def describe_now(self) -> str:
        """The latest stage of a running run, such as "cold start, 120 of 2,000"; "" if none is known."""
        events = (event for event in reversed(self.events) if event.get("kind") in ("stage", "progress"))
        return describe_stage(next(events, {})) if self.status == "running" else ""


def describe_stage(event: Mapping[str, Any]) -> str:
    """The stage of an event and its progress."""
    done, total = as_number(event.get("done")), as_number(event.get("total"))
    progress = f", {done:,.0f} of {total:,.0f}" if done is not None and total else ""
    return f"{event['stage']}{progress}" if isinstance(event.get("stage"), str) else ""


class SampledRun(LiveRun):
    """A run in the list of runs: a sample of its rows, with the first and the last."""

    def read_rows(self, file: Path) -> list[dict[str, Any]]:
        if file not in (self.folder.metrics_file, self.folder.evaluations_file, self.folder.events_file):
            return []
        place = self.shown.find_file(file)
        # All events: a finding is one of many.
        rows = super().read_rows(file) if file == self.folder.events_file else sample_rows(place) if place else []
        return [{name: value for name, value in row.items() if name in SAMPLED_KEYS} for row in rows]
