"""Filters, orders and pages over the completions of a whole run, by its row index.

The index (observe/rollouts.py) has a short record of fixed width for every saved completion, so a query over a million completions is a
few numpy operations. Texts are in the files of the steps (step_files.py); only those of the rows on a page are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from cohort.errors import NotFound
from cohort.observe.rollouts import DUPLICATE, EVIDENCE, ROW, WRONG_REWARDED, Rows, list_kept_steps
from cohort.tools.dashboard.run_index import ShownRun

MAX_RECORDS = 4_000_000
"""Completions listed at most: 164 MB of records."""


def load_rows(run: ShownRun) -> tuple[Rows, str]:
    """The newest records of the row index, and a message if some or all completions of the run are missing from them.

    The file is read, not memory-mapped, because resuming a run truncates it, which would kill a process that maps it.
    """
    file = run.find_file(run.folder.index_file)
    try:
        about = file.stat() if file else None
        count = about.st_size // ROW.itemsize if about else 0
        if file and about and count:
            left_out = max(0, count - MAX_RECORDS)
            note = f"The first {left_out:,} completions of the run are not listed." if left_out else ""
            return read_records(file, left_out, count, about.st_mtime_ns), note
    except OSError:
        pass
    if list_kept_steps(run.folder.rollouts):
        return np.zeros(
            0, ROW
        ), "The row index (rollouts/index.bin) is missing or empty. `cohort look` shows completions without it."
    return np.zeros(0, ROW), "This run has saved no completions. monitors.rollouts_every sets the steps that are saved."


@lru_cache(maxsize=2)
def read_records(file: Path, first: int, end: int, _modified: int) -> Rows:
    """The records from `first` to before `end`: 41 MB and about 20 ms for a million completions."""
    rows: Rows = np.fromfile(file, ROW, end - first, offset=first * ROW.itemsize)
    rows.flags.writeable = False
    return rows


# -- filters and orders ------------------------------------------------------------------------------------------------


FILTERS: dict[str, tuple[str, str, Callable[[Rows], np.ndarray]]] = {
    "all": ("all", "Every saved completion.", lambda rows: np.ones(len(rows), bool)),
    "wrong_rewarded": (
        "wrong but rewarded", "Judged wrong, with a reward above 0.", lambda rows: rows["flags"] & WRONG_REWARDED != 0
    ),
    "wrong": ("wrong", "Judged wrong.", lambda rows: rows["success"] == 0),
    "truncated": ("truncated", "Cut at max_completion_tokens.", lambda rows: rows["end"] == 1),
    "duplicates": (
        "duplicates", "Same text as an earlier completion of the group.", lambda rows: rows["flags"] & DUPLICATE != 0
    ),
    "evidence": ("evidence", "Named as evidence by a finding at that step.", lambda rows: rows["flags"] & EVIDENCE != 0),
    "unscored": ("unscored", "No reward function returned a score.", lambda rows: np.isnan(rows["reward"])),
}  # fmt: skip
"""Name in the address -> label, description, test."""

ORDERS: dict[str, tuple[str, Callable[[Rows], np.ndarray] | None]] = {
    "newest": ("newest first", None),
    "oldest": ("oldest first", None),
    "longest": ("longest first", lambda rows: rows["length"].astype(np.float64)),
    "reward": ("highest reward first", lambda rows: rows["reward"]),
    "advantage": ("largest advantage first", lambda rows: rows["advantage"].astype(np.float64)),
}
"""Name in the address -> label, and the number to sort by (None: the position in the run)."""


def parse_steps(text: str) -> tuple[int, int] | None:
    """ "12" or "10-20" as first and last step; None for all steps."""
    if not text:
        return None
    match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", text)
    if not match:
        raise NotFound("step: give a step such as 12, or a range such as 10-20.")
    first = int(match[1])
    return first, int(match[2] or first)


def match_rows(rows: Rows, filter_name: str, steps: tuple[int, int] | None) -> np.ndarray:
    """A mask of the records that match the filter and the steps."""
    matches = FILTERS[filter_name][2](rows)
    if steps:
        matches &= (rows["step"] >= steps[0]) & (rows["step"] <= steps[1])
    return matches


def count_filters(rows: Rows, steps: tuple[int, int] | None) -> dict[str, int]:
    """The number of completions that match each filter."""
    return {name: int(match_rows(rows, name, steps).sum()) for name in FILTERS}


def find_group_starts(rows: Rows) -> np.ndarray:
    """The position of the first record of every group. The completions of a group are adjacent."""
    if not len(rows):
        return np.zeros(0, np.int64)
    steps, groups = rows["step"], rows["group"]
    return np.flatnonzero(np.concatenate(([True], (steps[1:] != steps[:-1]) | (groups[1:] != groups[:-1]))))


@dataclass(frozen=True)
class Slice:
    """A page of a list."""

    places: np.ndarray
    """Positions of records; for groups, of their first records."""
    total: int
    page: int
    pages: int


def list_places(rows: Rows, matches: np.ndarray, order: str, by_groups: bool, page: int, size: int) -> Slice:
    """One page of the matching completions, or of the groups that contain any. A group is sorted by its first match."""
    sort_by = ORDERS[order][1]
    starts = find_group_starts(rows) if by_groups else np.flatnonzero(matches)
    if by_groups and len(starts):
        starts = starts[np.logical_or.reduceat(matches, starts)]
    total = len(starts)
    pages = max(1, -(-total // size))
    page = min(max(page, 1), pages)
    first, last = (page - 1) * size, min(page * size, total)
    if sort_by is None:
        chosen = starts[first:last] if order == "oldest" else starts[total - last : total - first][::-1]
        return Slice(chosen, total, page, pages)
    values = np.nan_to_num(np.where(matches, sort_by(rows), -np.inf), nan=-np.inf)
    if by_groups and total:
        every = find_group_starts(rows)
        values = np.maximum.reduceat(values, every)[np.isin(every, starts, assume_unique=True)]
    else:
        values = values[starts]
    return Slice(starts[find_largest(values, first, last)], total, page, pages)


def find_largest(values: np.ndarray, first: int, last: int) -> np.ndarray:
    """Positions of the values with ranks `first` to `last`, largest first; ties keep their order."""
    if last < len(values):  # the others need no sorting
        edge = np.partition(values, len(values) - last)[len(values) - last]
        candidates = np.flatnonzero(values >= edge)
    else:
        candidates = np.arange(len(values))
    return candidates[np.argsort(-values[candidates], kind="stable")][first:last]


def find_neighbours(values: np.ndarray, here: int) -> tuple[int | None, int | None]:
    """The next smaller and the next larger value."""
    below, above = values[values < here], values[values > here]
    return (int(below.max()) if len(below) else None), (int(above.min()) if len(above) else None)


def find_group_rows(rows: Rows, step: int, group: int) -> Rows:
    return rows[(rows["step"] == step) & (rows["group"] == group)]


def split_groups(rows: Rows, starts: np.ndarray) -> list[Rows]:
    """The records of the groups that start at these positions."""
    ends = np.append(find_group_starts(rows)[1:], len(rows))
    bounds = ends[np.searchsorted(ends, starts, side="right")]
    return [rows[start:end] for start, end in zip(starts.tolist(), bounds.tolist(), strict=True)]
