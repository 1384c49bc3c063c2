"""Reads the step files of a run: the rows and columns that a page needs, and text search within a limit on CPU time.

A run folder may come from a stranger, be incomplete, or exceed memory. So rows are decoded in small batches up to the last one needed, a
column that is too large is refused by name, and every fault of a file becomes a message.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from cohort.errors import CohortError, NotFound, RunError
from cohort.observe.rollouts import TOKENS, Rows, verify_file
from cohort.tools.dashboard.run_index import ShownRun

TEXT, NUMBER, WHOLE, VERDICT = ("is_string", "is_large_string"), ("is_floating", "is_integer"), ("is_integer",), ("is_boolean",)
KINDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("step", "group", "sample", "policy_version", "prompt_index", "length"), WHOLE),
    **dict.fromkeys(("prompt", "completion", "end", "extracted", "reference_answer", "episode"), TEXT),
    **dict.fromkeys(("reward", "advantage"), NUMBER),
    "success": VERDICT,
}
"""Columns that pages read -> their types, by the functions of pyarrow.types. A column of nulls is allowed too, except for NEVER_EMPTY."""
LISTS = {"prompt_ids": WHOLE, "completion_ids": WHOLE, "sampling_logprobs": NUMBER, "faults": TEXT}
"""The same for columns of lists."""
NEVER_EMPTY = ("group", "sample")
MAX_COLUMN_BYTES = 1 << 28
"""Decoded bytes of one column: a quarter of a GiB. A step of 8,192 completions with 4,096 tokens each needs half of that."""
BATCH_ROWS = 64
"""Rows decoded together."""
SEARCHED = ("prompt", "completion", "extracted", "reference_answer")
"""Columns of the text search."""
SEARCH_S = 0.8
"""CPU seconds of one search."""
MAX_SEARCHED_BYTES = 1 << 26
"""Bytes of a column of one step: searching 64 MiB takes about a quarter of a second."""
SEARCH_ROWS = 1024


def find_step_file(run: ShownRun, step: int) -> Path:
    """The file with the completions of a step; raises NotFound if there is none inside the given folders."""
    file = run.find_file(run.folder.rollouts_file(step))
    if file is None:
        raise NotFound(f"The completions of step {step} are not saved in this run.")
    return file


def read_shown_rows(
    run: ShownRun, step: int, first: int, count: int, columns: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """The rows of a page; raises NotFound with the reason if they cannot be read or some are missing."""
    try:
        rows = read_step_rows(find_step_file(run, step), first, count, columns)
    except RunError as problem:
        raise NotFound(str(problem)) from None
    if len(rows) < count:
        raise NotFound(f"The file of step {step} has fewer rows than the index.")
    return rows


def read_step_rows(file: Path, first: int, count: int, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Rows `first` to `first + count - 1` of a step, in the form of `read_rollouts`.

    columns: the columns to read, if the file has them; None: all except tokens.
    """
    return list(pick_step_rows(file, range(first, first + count), columns).values())


def pick_step_rows(file: Path, numbers: Collection[int], columns: Sequence[str] | None = None) -> dict[int, dict[str, Any]]:
    """Rows by number, in the order of the file; numbers that the file lacks are left out."""
    rows: dict[int, dict[str, Any]] = {}
    for start, batch in iterate_batches(file, columns, max(numbers, default=-1) + 1):
        inside = [number for number in range(start, start + batch.num_rows) if number in numbers]
        if inside:
            rows |= zip(inside, batch.take([number - start for number in inside]).to_pylist(), strict=True)
    return rows


def iterate_batches(
    file: Path,
    columns: Sequence[str] | None,
    until: int | None = None,
    *,
    batch_rows: int = BATCH_ROWS,
    most_bytes: int = MAX_COLUMN_BYTES,
) -> Iterator[tuple[int, Any]]:
    """(number of its first row, batch) for the rows of a file, up to the batch with row `until` - 1."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        verify_file(file)
        # As in read_rollouts: neither a path nor a Python file.
        with pa.OSFile(str(file)) as stream, pq.ParquetFile(stream, buffer_size=1 << 20, pre_buffer=False) as parquet:
            names = parquet.schema_arrow.names
            chosen = [name for name in names if (name in columns if columns is not None else name not in TOKENS)]
            check_kinds(parquet.schema_arrow, chosen, file)
            check_sizes(parquet, chosen, file, most_bytes)
            start = 0
            for batch in parquet.iter_batches(batch_rows, columns=chosen, use_threads=False):
                check_nulls(batch, file)
                yield start, batch
                start += batch.num_rows
                if until is not None and start >= until:
                    return
    except (OSError, pa.ArrowException, UnicodeDecodeError) as problem:
        raise refuse(file, str(problem).splitlines()[0]) from problem


def refuse(file: Path, reason: str) -> RunError:
    return RunError(f"{file.parent.name}/{file.name} cannot be read ({reason}).")


def check_kinds(schema: Any, chosen: Sequence[str], file: Path) -> None:
    """Raise RunError if a column has another type than runs write, or one of NEVER_EMPTY is missing."""
    from pyarrow import types

    for name in chosen:
        kind = schema.field(name).type
        kinds = KINDS.get(name) or (NUMBER if name.startswith("reward/") else None)
        fits = kinds is None or any(getattr(types, one)(kind) for one in kinds)
        if name in LISTS:
            listed = types.is_list(kind) or types.is_large_list(kind)
            fits = listed and any(getattr(types, one)(kind.value_type) for one in ("is_null", *LISTS[name]))
        if not fits and not types.is_null(kind):
            raise refuse(file, f"its column {name} has the wrong type")
    lacking = [name for name in NEVER_EMPTY if name not in schema.names]
    if lacking:
        raise refuse(file, f"it has no column {lacking[0]}")


def check_nulls(batch: Any, file: Path) -> None:
    for name in NEVER_EMPTY:
        if name in batch.schema.names and batch.column(batch.schema.get_field_index(name)).null_count:
            raise refuse(file, f"its column {name} has missing values")


def check_sizes(parquet: Any, chosen: Sequence[str], file: Path, most_bytes: int) -> None:
    """Raise RunError if a column is too large for a page."""
    sizes: dict[str, int] = {}
    for group in range(parquet.metadata.num_row_groups):
        about = parquet.metadata.row_group(group)
        for place in range(about.num_columns):
            column = about.column(place)
            name = str(column.path_in_schema).split(".")[0]
            sizes[name] = sizes.get(name, 0) + int(column.total_uncompressed_size)
    for name in chosen:
        if sizes.get(name, 0) > most_bytes:
            raise RunError(
                f"{file.parent.name}/{file.name}: its column {name} has {sizes[name] / 1e6:,.0f} MB, more than the limit of "
                f"{most_bytes / 1e6:,.0f} MB for a page. `cohort look` shows it in the terminal."
            )


def find_recorded_groups(run: ShownRun, step: int) -> set[int]:
    """The groups of a step with recorded tokens; an empty set if the file is missing or cannot be read."""
    file = run.find_file(run.folder.tokens_file(step))
    try:
        batches = iterate_batches(file, ("group",)) if file else ()
        return {int(group) for _, batch in batches for group in batch.column("group").to_pylist() if group is not None}
    except (RunError, KeyError, ValueError, TypeError):
        return set()


# -- text search -------------------------------------------------------------------------------------------------------


@dataclass
class Found:
    """The results of a search, and where it stopped."""

    places: list[int] = field(default_factory=list)
    """Positions of records, in search order."""
    steps_read: list[int] = field(default_factory=list)
    rows_read: int = 0
    unreadable: list[str] = field(default_factory=list)
    """A message for each step that could not be searched."""
    go_on: int | None = None
    """Position of the record to continue from; None if the search is complete."""


def search_texts(
    run: ShownRun,
    rows: Rows,
    matches: np.ndarray,
    wanted: str,
    *,
    newest: bool,
    start: int | None,
    most: int,
    budget_s: float = SEARCH_S,
) -> Found:
    """The matching records whose prompt, completion or answers contain the text, ignoring case.

    The search reads one step after the other until it has enough results or has used its CPU time, but at least one step.
    start: where an earlier search stopped; None: the newest or the oldest record.
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
        hits = search_step(run, rows, step, of_step, wanted, found)
        found.steps_read.append(step)
        room = most - len(found.places)
        found.places += hits[:room]
        if len(hits) > room:
            found.go_on = hits[room]
            return found
    return found


def split_by_step(rows: Rows, places: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(step, its positions) in order."""
    if not len(places):
        return
    steps = rows["step"][places]
    edges = [0, *(np.flatnonzero(steps[1:] != steps[:-1]) + 1).tolist(), len(places)]
    for first, last in pairwise(edges):
        yield int(steps[first]), places[first:last]


def search_step(run: ShownRun, rows: Rows, step: int, of_step: np.ndarray, wanted: str, found: Found) -> list[int]:
    """The positions of a step that contain the text, in their order; adds the searched rows or the error to `found`."""
    import pyarrow.compute as pc

    row_numbers = rows["row"][of_step]
    until = int(row_numbers.max()) + 1
    holding: set[int] = set()
    try:
        file = find_step_file(run, step)
        for first, batch in iterate_batches(file, SEARCHED, until, batch_rows=SEARCH_ROWS, most_bytes=MAX_SEARCHED_BYTES):
            for column in batch.columns:
                hits = pc.match_substring(column, wanted, ignore_case=True).fill_null(False)
                holding.update((first + np.flatnonzero(hits.to_numpy(zero_copy_only=False))).tolist())
    except CohortError as problem:
        found.unreadable.append(str(problem))
        return []
    found.rows_read += len(of_step)
    return [place for place, row in zip(of_step.tolist(), row_numbers.tolist(), strict=True) if row in holding]
