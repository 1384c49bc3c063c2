"""Incremental, size-limited reading of a run's growing files: parsed rows are kept, and only appended data is parsed.

Of a file that is too large, only the beginning and the end are read; skipped lines are counted for at most 0.25 s. Lines that are not JSON
objects and an incomplete last line are counted as well.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from cohort.observe.monitors.jsonl import parse_line

MEGABYTE = 1 << 20
BATCH = 500
"""Lines parsed in one call, so that they share the strings of their keys."""
CHUNK = 4 * MEGABYTE
COUNT_S = 0.25
"""Time limit for counting skipped lines, in seconds."""
MAX_BROKEN = 20_000
"""Broken lines that are skipped one by one; after that a whole batch with a broken line is skipped."""
FINGERPRINT = 64
"""Bytes before the read position that are kept to detect a rewritten file."""
MAX_HELD = 256 * MEGABYTE
"""Bytes of files whose rows stay in memory; beyond that, the least recently read files are dropped."""


@dataclass(frozen=True)
class Bounds:
    """How much of a file is read."""

    whole: int
    """Files up to this many bytes are read completely; of larger ones `head` and `tail` bytes."""
    head: int
    tail: int


BOUNDS = {
    "metrics.jsonl": Bounds(64 * MEGABYTE, 6 * MEGABYTE, 14 * MEGABYTE),
    "evaluations.jsonl": Bounds(32 * MEGABYTE, 4 * MEGABYTE, 8 * MEGABYTE),
    "ranks.jsonl": Bounds(16 * MEGABYTE, 1 * MEGABYTE, 7 * MEGABYTE),
    "events.jsonl": Bounds(8 * MEGABYTE, 1 * MEGABYTE, 3 * MEGABYTE),
}
OTHERS = Bounds(4 * MEGABYTE, 2 * MEGABYTE, MEGABYTE)
MAX_TEXT = 2 * MEGABYTE
"""Bytes read of a recipe or a summary."""


@dataclass
class Losses:
    """The parts of a file that are not shown."""

    broken: int = 0
    """Lines that are not JSON objects."""
    skipped: int = 0
    """Lines in the middle of a file that is too large, or among too many broken lines."""
    more: bool = False
    """Whether more lines were skipped than counted."""
    torn: bool = False
    """The last line is incomplete: it is being written, or a crash cut it."""

    def describe(self, name: str) -> str:
        """A sentence; "" if everything is shown."""
        words = []
        if self.skipped or self.more:
            count = f"{'at least ' if self.more else ''}{self.skipped:,} lines" if self.skipped else "its middle"
            words.append(f"{count} skipped because the file is too large or too damaged")
        if self.broken:
            words.append(f"{self.broken:,} broken line{'' if self.broken == 1 else 's'} skipped")
        if self.torn:
            words.append("the last line is incomplete")
        return f"{name}: {'; '.join(words)}." if words else ""


@dataclass
class LineFile:
    """The rows of a file of JSON lines, as of the last call of `look`."""

    path: Path
    bounds: Bounds = OTHERS
    rows: list[dict[str, Any]] = field(default_factory=list)
    losses: Losses = field(default_factory=Losses)
    held: int = 0
    """Bytes of the parsed rows."""
    parsed: int = 0
    """Lines parsed since the object was made."""
    _offset: int = 0
    _stamp: tuple[int, int, int] = (0, -1, 0)
    _before: bytes = b""
    _last: dict[str, Any] | None = None
    """The row of a last line without a line end: it is in `rows`, and is parsed again once the line is longer."""

    def look(self) -> list[dict[str, Any]]:
        """All rows, after parsing appended data; [] for a missing file."""
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
                if stamp == self._stamp:
                    return self.rows
                if not self._continues(file, stamp) or self.held + stamp[1] - self._offset > 2 * self.bounds.whole:
                    self._begin(file, stamp[1])
                self._append(file)
                self._stamp = stamp
        except OSError:
            self._forget()
        return self.rows

    def _forget(self) -> None:
        self.rows, self.losses, self.held, self._offset, self._before, self._last = [], Losses(), 0, 0, b"", None
        self._stamp = (0, -1, 0)

    def _continues(self, file: IO[bytes], stamp: tuple[int, int, int]) -> bool:
        """Whether the file only grew since it was read."""
        if stamp[0] != self._stamp[0] or stamp[1] < self._offset:
            return False
        file.seek(self._offset - len(self._before))
        return file.read(len(self._before)) == self._before

    def _begin(self, file: IO[bytes], size: int) -> None:
        """Start again: of a large file, read the head and set the position to the tail."""
        self._forget()
        if size <= self.bounds.whole:
            return
        file.seek(0)
        head = file.read(self.bounds.head)
        end = head.rfind(b"\n") + 1
        self._keep(head[:end].splitlines())
        start = size - self.bounds.tail
        file.seek(start)
        tail = file.read(self.bounds.tail)
        first = tail.find(b"\n") + 1
        self._offset = start + first if first else size
        self._before = tail[max(0, first - FINGERPRINT) : first] if first else tail[-FINGERPRINT:]
        self.losses.skipped, self.losses.more = count_lines(file, end, self._offset)
        self.held = end

    def _append(self, file: IO[bytes]) -> None:
        """Parse the data after the read position."""
        if self._last is not None:
            self.rows.pop()
            self._last = None
        self.losses.torn = False
        file.seek(self._offset)
        fresh = file.read(2 * self.bounds.whole)  # limited, because a file can grow faster than it is read
        end = fresh.rfind(b"\n") + 1
        self._keep(fresh[:end].splitlines())
        if rest := fresh[end:].strip():
            self._last = parse_line(rest)
            if self._last is None:
                self.losses.torn = True
            else:
                self.rows.append(self._last)
        self._offset += end
        self.held += end
        self._before = (self._before + fresh[:end])[-FINGERPRINT:]

    def _keep(self, lines: Sequence[bytes]) -> None:
        for first in range(0, len(lines), BATCH):
            batch = [line for line in lines[first : first + BATCH] if line.strip()]
            rows = parse_at_once(batch)
            if rows is None and self.losses.broken > MAX_BROKEN:
                self.losses.skipped += len(batch)
                continue
            rows = parse_each(batch) if rows is None else rows
            self.parsed += len(batch)
            self.losses.broken += len(batch) - len(rows)
            self.rows += rows


def parse_each(lines: Sequence[bytes]) -> list[dict[str, Any]]:
    """The rows of the lines that are complete objects."""
    return [row for line in lines if (row := parse_line(line)) is not None]


def parse_at_once(lines: Sequence[bytes]) -> list[dict[str, Any]] | None:
    """The same rows, faster and with less memory; None if a line is broken."""
    # The lines are joined to one JSON list with an unguessable separator. If a line is not a complete value, a separator is missing
    # from the result, and the caller parses each line.
    separator = secrets.token_hex(8)
    try:
        found = json.loads(b"[" + f',"{separator}",'.encode().join(lines) + b"]")
    except (ValueError, RecursionError):
        found = []
    if len(found) == 2 * len(lines) - 1 and all(one == separator for one in found[1::2]):
        return [row for row in found[::2] if isinstance(row, dict)]
    return None


def count_lines(file: IO[bytes], start: int, end: int) -> tuple[int, bool]:
    """(line ends between two positions, whether counting stopped at the time limit)."""
    until, count, place = time.monotonic() + COUNT_S, 0, start
    file.seek(start)
    while place < end:
        chunk = file.read(min(CHUNK, end - place))
        if not chunk:
            break
        count, place = count + chunk.count(b"\n"), place + len(chunk)
        if time.monotonic() > until:
            return count, place < end
    return count, False


class Reader:
    """The line files of all runs, within a limit on memory."""

    def __init__(self) -> None:
        self._files: OrderedDict[Path, LineFile] = OrderedDict()
        self._lock = threading.RLock()

    def look(self, path: Path) -> LineFile:
        """A copy of the file's rows and losses, up to date."""
        with self._lock:
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = LineFile(path, BOUNDS.get(path.name, OTHERS))
            self._files.move_to_end(path)
            file.look()
            while len(self._files) > 1 and sum(one.held for one in self._files.values()) > MAX_HELD:
                self._files.popitem(last=False)
            return LineFile(path, file.bounds, list(file.rows), Losses(**vars(file.losses)))


def read_bounded(path: Path) -> str:
    """The text of a file, cut at a length that no run exceeds; "" if there is no file."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_TEXT).decode("utf-8", "replace")
    except OSError:
        return ""


PLACES, SAMPLE, LONGEST = 48, 16 << 10, MEGABYTE
"""Positions sampled in a large file, bytes read at each, and bytes read for its first and last lines."""


def sample_rows(path: Path) -> list[dict[str, Any]]:
    """A sample of a file's rows in order, with the first and the last; all rows of a small file. The cost does not depend on the size."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= PLACES * SAMPLE // 4:
                return parse_each(file.read().splitlines())
            lines, ends = {0: file.readline(LONGEST)}, list[tuple[int, bytes]]()
            for number in range(1, PLACES):
                start = size * number // PLACES
                file.seek(start)
                chunk = file.read(SAMPLE)
                first = chunk.find(b"\n") + 1
                end = chunk.find(b"\n", first)
                if first and end > 0:
                    lines.setdefault(start + first, chunk[first:end])
            place = max(0, size - LONGEST)
            file.seek(place)
            # The last two, because the last may be incomplete.
            for line in file.read(LONGEST).splitlines(keepends=True):
                ends[:] = [*ends, (place, line)][-2:]
                place += len(line)
            lines.update(ends)
    except OSError:
        return []
    return parse_each([line for _, line in sorted(lines.items())])
