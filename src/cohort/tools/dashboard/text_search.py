"""Search in the texts of a run: step by step, with so much CPU time per question, and a place to go on from.

Texts are in the files of the steps, a few hundred kilobytes each, and a run may have thousands of them. A question therefore reads the
steps one after the other until it has enough or has used its time, and says which steps it has read.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from cohort.errors import CohortError
from cohort.tools.dashboard.group_queries import Rows
from cohort.tools.dashboard.shelf import ShownRun
from cohort.tools.dashboard.step_files import find_step_file, iterate_batches

SEARCHED = ("prompt", "completion", "extracted", "gold")
"""Columns whose text is searched."""
BUDGET_S = 0.8
"""CPU seconds of one question."""
MAX_SEARCHED_BYTES = 1 << 26
"""Of a column of one step: 64 MiB are searched in about a quarter of a second."""
BATCH_ROWS = 1024


@dataclass
class Found:
    """What a search has found, and where it stopped."""

    places: list[int] = field(default_factory=list)
    """Of records, in the order of the search."""
    steps_read: list[int] = field(default_factory=list)
    rows_read: int = 0
    unreadable: list[str] = field(default_factory=list)
    """Why a step could not be searched, for each that could not."""
    go_on: int | None = None
    """Place of the record to go on from; None: everything was searched."""


def search_texts(
    run: ShownRun,
    rows: Rows,
    matches: np.ndarray,
    wanted: str,
    *,
    newest: bool,
    start: int | None,
    most: int,
    budget_s: float = BUDGET_S,
) -> Found:
    """Matching records whose prompt, completion, answer or gold holds the text; capital and small letters are the same.

    start: where an earlier search stopped; None: at the end that `newest` says. At least one step is read whatever the budget.
    """
    places = np.flatnonzero(matches)
    if newest:
        places = places[::-1]
    if start is not None:
        places = places[places <= start] if newest else places[places >= start]
    found, began = Found(), time.thread_time()
    for step, of_step in split_by_step(rows, places):
        if found.steps_read and time.thread_time() - began > budget_s:
            found.go_on = int(of_step[0])
            return found
        hits, read = search_step(run, rows, step, of_step, wanted, found)
        found.steps_read.append(step)
        found.rows_read += read
        room = most - len(found.places)
        found.places += hits[:room]
        if len(hits) > room:
            found.go_on = hits[room]
            return found
    return found


def split_by_step(rows: Rows, places: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(step, its places) one after the other."""
    if not len(places):
        return
    steps = rows["step"][places]
    edges = [0, *(np.flatnonzero(steps[1:] != steps[:-1]) + 1).tolist(), len(places)]
    for first, last in pairwise(edges):
        yield int(steps[first]), places[first:last]


def search_step(run: ShownRun, rows: Rows, step: int, of_step: np.ndarray, wanted: str, found: Found) -> tuple[list[int], int]:
    """The places of a step that hold the text, in their order, and how many were looked at."""
    import pyarrow.compute as pc

    row_numbers = rows["row"][of_step]
    until = int(row_numbers.max()) + 1
    holding: set[int] = set()
    try:
        file = find_step_file(run, step)
        for first, batch in iterate_batches(file, SEARCHED, until, batch_rows=BATCH_ROWS, most_bytes=MAX_SEARCHED_BYTES):
            for column in batch.columns:
                hits = pc.match_substring(column, wanted, ignore_case=True).fill_null(False)
                holding.update((first + np.flatnonzero(hits.to_numpy(zero_copy_only=False))).tolist())
    except CohortError as problem:
        found.unreadable.append(str(problem))
        return [], 0
    return [place for place, row in zip(of_step.tolist(), row_numbers.tolist(), strict=True) if row in holding], len(of_step)
