"""Questions to the completions of a whole run, answered from the row index: which rows, which groups, in which order.

The index (observe/rollouts.py) has one record of fixed width for every completion that was kept. A
question about a million rollouts is a few passes of numpy over it; texts are in the files of the steps, and only those of rows that are
shown are opened (step_files.py). A run without an index is answered for one step, from the step's own file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from cohort.errors import CohortError, RunError
from cohort.observe.rollouts import DUPLICATE, EVIDENCE, ROW, WRONG_REWARDED, Rows, fill_rows, list_kept_steps
from cohort.tools.dashboard.shelf import ShownRun
from cohort.tools.dashboard.step_files import find_step_file, iterate_batches

INDEXED = ("group", "sample", "prompt_index", "completion_ids", "reward", "advantage", "length", "end", "success")
"""Columns of a step's file that a record is made of."""
MAX_RECORDS = 4_000_000
"""Completions that a list goes through: 164 MB of records."""


@dataclass(frozen=True)
class RunRows:
    """The records that can be asked, and what to say of those that cannot."""

    rows: Rows
    note: str = ""
    """Why these are not all completions of the run; empty where they are."""


def load_rows(run: ShownRun, step: int | None = None) -> RunRows:
    """The records of the whole run; of one step, or the newest, where there is no index or the step is not in it."""
    file = run.find_file(run.folder.index_file)
    rows, left_out = read_records(file) if file else (np.zeros(0, ROW), 0)
    if len(rows) and (step is None or (rows["step"] == step).any() or not run.find_file(run.folder.rollouts_file(step))):
        return RunRows(
            rows, f"The first {left_out:,} completions of the run are not listed: there are too many." if left_out else ""
        )
    kept = list_kept_steps(run.folder.rollouts)
    if not kept:
        return RunRows(
            np.zeros(0, ROW), "No completions are kept in this run; monitors.rollouts_every says of which steps they are."
        )
    chosen = kept[-1] if step is None else step
    if chosen not in kept:
        return RunRows(np.zeros(0, ROW), f"The completions of step {step} are not kept. {describe_kept(kept)}")
    why = f"does not hold step {chosen}" if len(rows) else "is missing, for the run was made before there was one"
    alone = f"These are the completions of step {chosen} alone; to filter and search all steps at once the index is needed."
    try:
        return RunRows(index_step(run, chosen), f"The row index (rollouts/index.bin) {why}. {alone} {describe_kept(kept)}")
    except (CohortError, ValueError, TypeError, OverflowError) as problem:  # a file of unexpected form is a sentence
        told = (
            str(problem) if isinstance(problem, CohortError) else f"The file of step {chosen} is none that a run has written."
        )
        return RunRows(np.zeros(0, ROW), f"The row index (rollouts/index.bin) {why}. {told}")


def read_records(file: Path) -> tuple[Rows, int]:
    """The newest records of an index, and how many before them are left out.

    They are read, not mapped: a run that is resumed cuts its index, and a process that looks at a map of it then is killed.
    """
    try:
        about = file.stat()
        count = about.st_size // ROW.itemsize
        return read_version(file, max(0, count - MAX_RECORDS), count, about.st_mtime_ns), max(0, count - MAX_RECORDS)
    except OSError:
        return np.zeros(0, ROW), 0


@lru_cache(maxsize=2)
def read_version(file: Path, first: int, end: int, _written: int) -> Rows:
    """The records from `first` to before `end`. Those of a million completions are 41 MB, and read in some 20 ms."""
    rows: Rows = np.fromfile(file, ROW, end - first, offset=first * ROW.itemsize)
    rows.flags.writeable = False
    return rows


def describe_kept(kept: Sequence[int]) -> str:
    return (
        f"Steps {kept[0]} to {kept[-1]} are kept, {len(kept)} of them." if len(kept) > 1 else f"Step {kept[0]} alone is kept."
    )


def index_step(run: ShownRun, step: int) -> Rows:
    """The records of one step, made from its file; which of them a finding names is not known there."""
    rows: list[dict[str, Any]] = []
    tokens: list[bytes] = []
    for _, batch in iterate_batches(find_step_file(run, step), INDEXED):
        place = batch.schema.get_field_index("completion_ids")
        tokens += read_token_bytes(batch.column(place)) if place >= 0 else []
        rows += (batch.remove_column(place) if place >= 0 else batch).to_pylist()

    def read(name: str, otherwise: Any) -> list[Any]:
        return [otherwise if row.get(name) is None else row[name] for row in rows]

    columns = {name: read(name, 0) for name in ("group", "sample", "prompt_index", "length")}
    columns |= {"reward": read("reward", np.nan), "advantage": read("advantage", np.nan), "success": read("success", -1)}
    columns |= {"step": [step] * len(rows), "end": [row.get("end") == "length" for row in rows]}
    numbers: dict[bytes, int] = {}
    same = [numbers.setdefault(key, len(numbers)) for key in tokens] or range(len(rows))  # without tokens no copy is known
    return fill_rows(columns, [(number,) for number in same])


def read_token_bytes(column: Any) -> list[bytes]:
    """The ids of every completion as bytes, which tell copies apart without an object for each token."""
    values, edges = column.values.to_numpy(zero_copy_only=False), column.offsets.to_numpy(zero_copy_only=False).tolist()
    return [values[first:last].tobytes() for first, last in pairwise(edges)]


# -- filters and orders ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Filter:
    """A kind of completions that can be listed alone."""

    label: str
    about: str
    """What is in it, in a sentence."""
    keep: Callable[[Rows], np.ndarray]


FILTERS: dict[str, Filter] = {
    "all": Filter("all", "Every completion that was kept.", lambda rows: np.ones(len(rows), bool)),
    "wrong_rewarded": Filter(
        "wrong but rewarded", "Judged wrong, with a reward above 0.", lambda rows: rows["flags"] & WRONG_REWARDED != 0
    ),
    "wrong": Filter("wrong", "Judged wrong.", lambda rows: rows["success"] == 0),
    "truncated": Filter("truncated", "Cut at max_completion_tokens.", lambda rows: rows["end"] == 1),
    "duplicates": Filter(
        "duplicates", "The same text as an earlier completion of the group.", lambda rows: rows["flags"] & DUPLICATE != 0
    ),
    "evidence": Filter(
        "findings' evidence", "Named by what a finding looks at in that step.", lambda rows: rows["flags"] & EVIDENCE != 0
    ),
    "unscored": Filter("without a score", "No reward function could judge it.", lambda rows: np.isnan(rows["reward"])),
}

ORDERS: dict[str, tuple[str, Callable[[Rows], np.ndarray] | None]] = {
    "newest": ("newest first", None),
    "oldest": ("oldest first", None),
    "longest": ("longest first", lambda rows: rows["length"].astype(np.float64)),
    "reward": ("most reward first", lambda rows: rows["reward"]),
    "advantage": ("largest advantage first", lambda rows: rows["advantage"].astype(np.float64)),
}
"""Word in the address -> its label, and the number that decides; None: the place in the run."""


def parse_steps(text: str) -> tuple[int, int] | None:
    """ "12" or "10-20" as the first and the last step; None for all of them."""
    if not text:
        return None
    match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", text)
    if not match:
        raise RunError("step: a step belongs there, such as 12, or several, such as 10-20.")
    first = int(match[1])
    return first, int(match[2] or first)


def match_rows(rows: Rows, filter_name: str, steps: tuple[int, int] | None) -> np.ndarray:
    """Which records are in the filter and the steps."""
    matches = FILTERS[filter_name].keep(rows)
    if steps:
        matches &= (rows["step"] >= steps[0]) & (rows["step"] <= steps[1])
    return matches


def count_filters(rows: Rows, steps: tuple[int, int] | None) -> dict[str, int]:
    """Filter -> how many completions it leaves."""
    inside = match_rows(rows, "all", steps)
    return {name: int((one.keep(rows) & inside).sum()) for name, one in FILTERS.items()}


def find_group_starts(rows: Rows) -> np.ndarray:
    """Place of the first record of every group. The completions of a group stand together."""
    if not len(rows):
        return np.zeros(0, np.int64)
    steps, groups = rows["step"], rows["group"]
    return np.flatnonzero(np.concatenate(([True], (steps[1:] != steps[:-1]) | (groups[1:] != groups[:-1]))))


@dataclass(frozen=True)
class Slice:
    """A page of a list."""

    places: np.ndarray
    """Of records; of groups their first ones."""
    total: int
    page: int
    pages: int


def list_places(rows: Rows, matches: np.ndarray, order: str, by_groups: bool, page: int, size: int) -> Slice:
    """One page of the matching completions, or of the groups that hold any. A group stands where its foremost match would."""
    decide = ORDERS[order][1]
    starts = find_group_starts(rows) if by_groups else np.flatnonzero(matches)
    if by_groups and len(starts):
        starts = starts[np.logical_or.reduceat(matches, starts)]
    total = len(starts)
    pages = max(1, -(-total // size))
    page = min(max(page, 1), pages)
    first, last = (page - 1) * size, min(page * size, total)
    if decide is None:
        chosen = starts[first:last] if order == "oldest" else starts[total - last : total - first][::-1]
        return Slice(chosen, total, page, pages)
    values = np.nan_to_num(np.where(matches, decide(rows), -np.inf), nan=-np.inf)
    if by_groups and total:
        ends = find_group_starts(rows)
        values = np.maximum.reduceat(values, ends)[np.isin(ends, starts, assume_unique=True)]
    else:
        values = values[starts]
    return Slice(starts[find_largest(values, first, last)], total, page, pages)


def find_largest(values: np.ndarray, first: int, last: int) -> np.ndarray:
    """Places of the values that stand from `first` to `last` when the largest come first; ties in the order they have."""
    if last < len(values):  # what stands behind need not be sorted
        edge = np.partition(values, len(values) - last)[len(values) - last]
        candidates = np.flatnonzero(values >= edge)
    else:
        candidates = np.arange(len(values))
    return candidates[np.argsort(-values[candidates], kind="stable")][first:last]


def count_steps(rows: Rows) -> int:
    """How many steps there are; they stand together."""
    return int((rows["step"][1:] != rows["step"][:-1]).sum()) + 1 if len(rows) else 0


def find_beside(values: np.ndarray, here: int) -> tuple[int | None, int | None]:
    """The next smaller and the next larger value."""
    below, above = values[values < here], values[values > here]
    return (int(below.max()) if len(below) else None), (int(above.min()) if len(above) else None)


def find_group_rows(rows: Rows, step: int, group: int) -> Rows:
    return rows[(rows["step"] == step) & (rows["group"] == group)]


@dataclass(frozen=True)
class GroupNumbers:
    """A group in numbers, from the index alone."""

    step: int
    group: int
    first_row: int
    right: int
    judged: int
    mean: float
    """Of the rewards there are; NaN without any."""
    std: float
    """Population standard deviation of the same."""
    longest: int
    cut: int
    verdicts: tuple[int, ...]
    """Of each completion: 1 right, 0 wrong, -1 not judged."""


def measure_groups(rows: Rows, starts: np.ndarray) -> list[GroupNumbers]:
    """The groups that begin at these places, in their order."""
    ends = np.append(find_group_starts(rows)[1:], len(rows))
    bounds = ends[np.searchsorted(ends, starts, side="right")]
    return [measure_group(rows[start:end]) for start, end in zip(starts.tolist(), bounds.tolist(), strict=True)]


def measure_group(members: Rows) -> GroupNumbers:
    rewards = members["reward"][~np.isnan(members["reward"])]
    first = members[0]
    return GroupNumbers(
        step=int(first["step"]),
        group=int(first["group"]),
        first_row=int(first["row"]),
        right=int((members["success"] == 1).sum()),
        judged=int((members["success"] >= 0).sum()),
        mean=float(rewards.mean()) if len(rewards) else float("nan"),
        std=float(rewards.std()) if len(rewards) else float("nan"),
        longest=int(members["length"].max()),
        cut=int((members["end"] == 1).sum()),
        verdicts=tuple(members["success"].tolist()),
    )
