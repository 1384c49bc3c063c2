"""How often pages are made: never again as long as nothing was written, and so seldom that a core is left alone while a run trains.

Making a page that is already there waits until 80 times the CPU seconds that this takes have passed since the last time, whichever page
that was: following runs then costs less than an eightieth of a core, however large they are and however many pages are open. Whoever opens
a page for the first time waits for nothing.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cohort.errors import NotFound
from cohort.observe.run_folder import RunFolder
from cohort.tools.dashboard.shelf import Shelf, ShownRun
from cohort.tools.dashboard.view import Page, View

SPARED = 80.0
"""Seconds that pass for each second of making pages again."""
MAX_KEPT = 24
"""Pages that are kept, those that were asked for last."""
RUN_WORDS = ("run", "a", "b")
"""Words of a query that name runs."""
LEAST_WAIT = 2.0
AGED_S = 60.0
"""Seconds after which a page that says how long ago a run wrote is made again, though nothing was written."""


@dataclass
class Written:
    """A page as it was made."""

    page: Page
    sections: str
    stamp: str
    etag: str
    cpu: float
    """Seconds of CPU that it took."""
    looking: float
    """Of them, what it takes to see whether anything has changed."""
    at: float
    """When, by the clock that never goes back."""


class Pace:
    """The pages that were made, and when each may be made again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.thread_time) -> None:
        self.clock, self.cpu = clock, cpu
        self.free_at = 0.0
        self._kept: OrderedDict[tuple[object, ...], Written] = OrderedDict()
        self._locks: dict[tuple[object, ...], threading.Lock] = {}
        self._lock = threading.Lock()

    def write(self, shelf: Shelf, view: View, make: Callable[[], Page], render: Callable[[Page, View], str]) -> Written:
        """The page of a view: the one that is kept where nothing was written since, or it is too early to make it again."""
        key = (view.path, *view.query)
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:  # two who ask for the same page wait for one making of it
            begun = self.cpu()
            stamp = stamp_view(shelf, view)
            looking = self.cpu() - begun
            kept = self._kept.get(key)
            if kept is not None and ((kept.stamp == stamp and not self.has_aged(kept)) or not self.may_write(kept)):
                kept.looking = looking
                return kept
            try:
                page = make()
                sections = render(page, view)
            except BaseException:
                self._locks.pop(key, None)
                raise
            spent = self.cpu() - begun
            etag = f'"{hashlib.sha256(sections.encode("utf-8", "replace")).hexdigest()[:24]}"'
            written = Written(page, sections, stamp, etag, spent, looking, self.clock())
            with self._lock:
                if kept is not None:
                    self.free_at = self.clock() + SPARED * spent
                self._kept[key] = written
                self._kept.move_to_end(key)
                while len(self._kept) > MAX_KEPT:
                    old, _ = self._kept.popitem(last=False)
                    self._locks.pop(old, None)
            return written

    def find_age(self, kept: Written) -> float:
        return self.clock() - kept.at

    def has_aged(self, kept: Written) -> bool:
        """Whether the silence itself is news: a run that was killed writes nothing, and is no longer running."""
        return kept.page.aging and self.find_age(kept) >= AGED_S

    def may_write(self, kept: Written) -> bool:
        return self.clock() >= max(self.free_at, kept.at + SPARED * kept.cpu)

    def find_wait(self, kept: Written) -> float:
        """Seconds until there is a point in asking again."""
        return max(LEAST_WAIT, 5 * SPARED * kept.looking, max(self.free_at, kept.at + SPARED * kept.cpu) - self.clock())


def stamp_view(shelf: Shelf, view: View) -> str:
    """Changes when one of the files that a view is about does; made of their sizes and times alone."""
    names = [view.words["name"]] if "name" in view.words else [value for key, value in view.query if key in RUN_WORDS]
    runs = []
    for name in names:
        try:
            runs.append(shelf.find(name))
        except NotFound:
            continue
    if view.path == "/":
        runs = shelf.list_runs()
    return ";".join(f"{run.name}:{','.join(stamp_run(run))}" for run in runs)


def stamp_run(run: ShownRun) -> Iterator[str]:
    for file in list_watched(run.folder):
        try:
            found = file.stat()
        except OSError:
            yield "-"
        else:
            yield f"{found.st_size}.{found.st_mtime_ns}"


def list_watched(folder: RunFolder) -> list[Path]:
    """The files that pages are made of. rollouts/ itself changes whenever a file is added to it."""
    names = (
        "recipe.toml",
        "metrics.jsonl",
        "evaluations.jsonl",
        "ranks.jsonl",
        "events.jsonl",
        "summary.json",
        "rollouts",
        "rollouts/index.bin",
    )
    return [folder.root / name for name in names]
