"""The runs that may be shown. A name is looked up in a table that was made from folders; it is never joined to a path.

What leads out of the folders that were named, a link for instance, is not followed: neither a run nor a file in one.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.errors import NotFound
from cohort.observe.run_folder import RunFolder
from cohort.tools.dashboard.reader import Reader

MARKS = ("recipe.toml", "metrics.jsonl")
"""One of these makes a folder a run."""
MAX_DEPTH = 3
"""Folders below one that was named: `cohort compare` keeps the runs of its contenders two further down."""
MAX_FOLDERS = 20_000
"""Folders that are looked into."""
FRESH_S = 2.0
"""Seconds in which a list of the runs is not made again."""


@dataclass(frozen=True)
class ShownRun:
    """A run that may be shown."""

    name: str
    """Safe in an address: letters, digits and ._~- alone."""
    title: str
    """For people: where it lies below the folder that was named."""
    folder: RunFolder
    root: Path
    """The folder that was named; nothing outside is read."""

    def find_file(self, file: Path) -> Path | None:
        """The file where it is one and lies inside the folder that was named, its links followed; else None."""
        try:
            place = file.resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            return None
        return place if place.is_file() and place.is_relative_to(self.root) else None

    @property
    def address(self) -> str:
        return f"/run/{self.name}"


class Shelf:
    """The runs in some folders, looked for again when they are asked for."""

    def __init__(self, folders: Sequence[str | Path]) -> None:
        self.roots = [Path(folder).resolve() for folder in folders]
        self.reader = Reader()
        self.glances: dict[str, tuple[str, Any]] = {}
        """What the list of runs has read of each, with the state of its files."""
        self._runs: dict[str, ShownRun] = {}
        self._made = -FRESH_S
        self._lock = threading.Lock()

    def list_runs(self, wanted: str = "") -> list[ShownRun]:
        """All of them, in the order of their titles. wanted: a name that is looked for anew if it is not known, as of a run just begun."""
        with self._lock:
            if time.monotonic() - self._made >= FRESH_S or (wanted and wanted not in self._runs):
                self._runs = {run.name: run for run in find_runs(self.roots)}
                self._made = time.monotonic()
            return list(self._runs.values())

    def find(self, name: str) -> ShownRun:
        """The run of that name; NotFound where there is none, or no longer."""
        run = self._runs.get(name) or next((run for run in self.list_runs(name) if run.name == name), None)
        if run is None or not run.folder.root.is_dir():
            raise NotFound("There is no run of this name in the folders that are shown.")
        return run


def find_runs(roots: Sequence[Path]) -> list[ShownRun]:
    places: dict[Path, tuple[str, Path]] = {}
    for root in roots:
        for place in walk_runs(root):
            title = place.relative_to(root).as_posix() if place != root else root.name
            places.setdefault(place, (title, root))
    runs: dict[str, ShownRun] = {}
    for place, (title, root) in sorted(places.items(), key=lambda entry: entry[1][0]):
        name = make_name(title)
        if name in runs or name != title.replace("/", "~"):  # another run has it, or it says less than the folder's own
            name = f"{name}~{hashlib.sha256(os.fsencode(place)).hexdigest()[:8]}"
        runs[name] = ShownRun(name, title, RunFolder(place), root)
    return list(runs.values())


def make_name(title: str) -> str:
    """A title with nothing in it that means something in an address."""
    return re.sub(r"[^A-Za-z0-9_.~-]", "_", title.replace("/", "~"))[:120]


def walk_runs(root: Path) -> Iterator[Path]:
    """The folders of runs at or below `root`, links followed where they stay inside. A run is not looked into."""
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
