"""A cache of pages that limits how often they are made again: rarely enough to leave a core free for training.

A page is made again only after its files changed, and only once 80 times the CPU seconds of making it have passed since any page was made
again. Following runs then costs less than 1/80 of a core, whatever their size and however many pages are open. The first request for a
page never waits.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cohort.errors import NotFound
from cohort.tools.dashboard.run_index import RunIndex, ShownRun
from cohort.tools.dashboard.view import Page, View

SPARED = 80.0
"""Seconds to wait for each CPU second of making pages again."""
MAX_KEPT = 24
"""Pages in the cache; the most recently made ones stay."""
LEAST_WAIT = 2.0
AGED_S = 60.0
"""Seconds after which an aging page is made again even if no file changed."""
FILES = ("recipe.toml", "metrics.jsonl", "evaluations.jsonl", "ranks.jsonl", "events.jsonl", "summary.json")
WATCHED = (*FILES, "rollouts", "rollouts/index.bin")
"""Files that pages are made from. The time of rollouts/ changes when a file is added."""


@dataclass
class MadePage:
    """A page in the cache."""

    page: Page
    sections: str
    stamp: str
    etag: str
    cpu: float
    """CPU seconds of making it."""
    looking: float
    """CPU seconds of checking for changes."""
    at: float
    """When it was made, by the monotonic clock."""


class Pace:
    """The cache of pages, and when each may be made again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.thread_time) -> None:
        self.clock, self.cpu = clock, cpu
        self.free_at = 0.0
        self._kept: OrderedDict[tuple[object, ...], MadePage] = OrderedDict()
        self._locks: dict[tuple[object, ...], threading.Lock] = {}
        self._lock = threading.Lock()

    def make(self, run_index: RunIndex, view: View, make: Callable[[], Page], render: Callable[[Page, View], str]) -> MadePage:
        """The page of a view, from the cache if nothing changed or it is too early to make it again."""
        key = (view.path, *view.query)
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:  # simultaneous requests for a page share one result
            begun = self.cpu()
            stamp = stamp_view(run_index, view)
            looking = self.cpu() - begun
            kept = self._kept.get(key)
            if kept is not None:
                aged = kept.page.aging and self.find_age(kept) >= AGED_S
                if (kept.stamp == stamp and not aged) or self.clock() < self.find_next(kept):
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
            made = MadePage(page, sections, stamp, etag, spent, looking, self.clock())
            with self._lock:
                if kept is not None:
                    self.free_at = self.clock() + SPARED * spent
                self._kept[key] = made
                self._kept.move_to_end(key)
                while len(self._kept) > MAX_KEPT:
                    old, _ = self._kept.popitem(last=False)
                    self._locks.pop(old, None)
            return made

    def find_age(self, kept: MadePage) -> float:
        return self.clock() - kept.at

    def find_next(self, kept: MadePage) -> float:
        """When the page may be made again."""
        return max(self.free_at, kept.at + SPARED * kept.cpu)

    def find_wait(self, kept: MadePage) -> float:
        """Seconds until the browser should poll again."""
        return max(LEAST_WAIT, 5 * SPARED * kept.looking, self.find_next(kept) - self.clock())


def stamp_view(run_index: RunIndex, view: View) -> str:
    """The sizes and times of the files behind a page, as a string that changes with any of them."""
    runs = []
    for name in [view.params["name"]] if "name" in view.params else view.read_all("run"):
        try:
            runs.append(run_index.find(name))
        except NotFound:
            continue
    if view.path == "/":
        runs = run_index.list_runs()
    return ";".join(f"{run.name}:{','.join(stamp_run(run))}" for run in runs)


def stamp_run(run: ShownRun) -> Iterator[str]:
    for name in WATCHED:
        try:
            found = (run.folder.root / name).stat()
        except OSError:
            yield "-"
        else:
            yield f"{found.st_size}.{found.st_mtime_ns}"
