"""What the dashboard reads of a step's parquet files: a few rows and columns, never more than a page needs.

A run folder may be a stranger's, half written or larger than memory. So rows are decoded in small batches up to the last one that is
wanted, a column that would not fit is refused by name, and whatever is wrong with a file is a sentence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cohort.errors import NotFound, RunError
from cohort.observe.rollouts import TOKENS
from cohort.tools.dashboard.shelf import ShownRun

TEXT, NUMBER, WHOLE, VERDICT = ("is_string", "is_large_string"), ("is_floating", "is_integer"), ("is_integer",), ("is_boolean",)
KINDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("step", "group", "sample", "policy_version", "prompt_index", "length"), WHOLE),
    **dict.fromkeys(("prompt", "completion", "end", "extracted", "gold"), TEXT),
    **dict.fromkeys(("reward", "advantage"), NUMBER),
    "success": VERDICT,
}
"""Columns that pages count on -> the kinds of them, as pyarrow.types asks for them. None at all (null) will do for each but NEVER_EMPTY."""
LISTS = {"prompt_ids": WHOLE, "completion_ids": WHOLE, "sampling_logprobs": NUMBER, "faults": TEXT}
"""The same of columns with a list in each row."""
NEVER_EMPTY = ("group", "sample")
MAX_COLUMN_BYTES = 1 << 28
"""Of one column of a file, decoded: a quarter of a gibibyte. A step of 8,192 completions with 4,096 tokens each is half of it."""
BATCH_ROWS = 64
"""Rows that are decoded together: a group or two."""


def find_step_file(run: ShownRun, step: int) -> Path:
    """The completions of a step; NotFound where they are not kept, or lie elsewhere."""
    file = run.find_file(run.folder.rollouts_file(step))
    if file is None:
        raise NotFound(f"The completions of step {step} are not kept in this run.")
    return file


def read_shown_rows(
    run: ShownRun, step: int, first: int, count: int, columns: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """The rows that a page is about; NotFound with the reason where they cannot be read, or are not all there."""
    try:
        rows = read_step_rows(find_step_file(run, step), first, count, columns)
    except RunError as problem:
        raise NotFound(str(problem)) from None
    if len(rows) < count:
        raise NotFound(f"The file of step {step} has fewer rows than the index says.")
    return rows


def read_step_rows(file: Path, first: int, count: int, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Rows `first` to `first + count - 1` of a step's completions, as `read_rollouts` gives them.

    columns: those of them that are wanted, where the file has them; None: all but tokens.
    """
    return list(pick_step_rows(file, range(first, first + count), columns).values())


def pick_step_rows(file: Path, numbers: Collection[int], columns: Sequence[str] | None = None) -> dict[int, dict[str, Any]]:
    """Rows by their numbers, in the order of the file; those that it does not have are left out."""
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
    """(number of its first row, batch) over the rows of a file, up to the batch that holds row `until` - 1."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # As in read_rollouts: neither its path nor a file of Python's.
        with pa.OSFile(str(file)) as stream, pq.ParquetFile(stream, buffer_size=1 << 20, pre_buffer=False) as parquet:
            chosen = choose_columns(parquet.schema_arrow.names, columns)
            check_kinds(parquet.schema_arrow, chosen, file)
            check_sizes(parquet, list(chosen), file, most_bytes)
            start = 0
            for batch in parquet.iter_batches(batch_rows, columns=list(chosen), use_threads=False):
                refuse_gaps(batch, file)
                yield start, batch.rename_columns([chosen[name] for name in batch.schema.names])
                start += batch.num_rows
                if until is not None and start >= until:
                    return
    except (OSError, pa.ArrowException, UnicodeDecodeError) as problem:
        raise RunError(f"{file.parent.name}/{file.name} cannot be read ({str(problem).splitlines()[0]}).") from problem


def choose_columns(names: Sequence[str], columns: Sequence[str] | None) -> dict[str, str]:
    """Name in the file -> name today, of the wanted columns that the file has. In older files what was extracted is called `answer`."""
    today = {name: name for name in names}
    if "extracted" not in today and "answer" in today:
        today["answer"] = "extracted"
    return {name: new for name, new in today.items() if (new in columns if columns is not None else name not in TOKENS)}


def check_kinds(schema: Any, chosen: Mapping[str, str], file: Path) -> None:
    """Refuse a file whose columns are of other kinds than a run writes: whoever reads them counts on these."""
    from pyarrow import types

    for name, today in chosen.items():
        kind = schema.field(name).type
        kinds = KINDS.get(today) or (NUMBER if today.startswith("reward/") else None)
        fits = kinds is None or any(getattr(types, one)(kind) for one in kinds)
        if today in LISTS:
            listed = types.is_list(kind) or types.is_large_list(kind)
            fits = listed and any(getattr(types, one)(kind.value_type) for one in ("is_null", *LISTS[today]))
        if not fits and not types.is_null(kind):
            raise RunError(
                f"{file.parent.name}/{file.name} cannot be read (its column {name} is of a kind that no run writes)."
            )
    lacking = [name for name in NEVER_EMPTY if name not in schema.names]
    if lacking:
        raise RunError(f"{file.parent.name}/{file.name} cannot be read (it has no column {lacking[0]}).")


def refuse_gaps(batch: Any, file: Path) -> None:
    for name in NEVER_EMPTY:
        if name in batch.schema.names and batch.column(batch.schema.get_field_index(name)).null_count:
            raise RunError(f"{file.parent.name}/{file.name} cannot be read (its column {name} has gaps).")


def check_sizes(parquet: Any, chosen: Sequence[str], file: Path, most_bytes: int) -> None:
    """Refuse columns that are too large to be decoded for a page."""
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
                f"{file.parent.name}/{file.name}: its column {name} has {sizes[name] / 1e6:,.0f} MB, and a page reads {most_bytes / 1e6:,.0f} MB "
                "of a column at most. `cohort look` reads it in the terminal."
            )


def find_recorded_groups(run: ShownRun, step: int) -> set[int]:
    """The groups of a step whose single tokens are recorded; none where the file is missing or cannot be read."""
    file = run.find_file(run.folder.tokens_file(step))
    try:
        batches = iterate_batches(file, ("group",)) if file else ()
        return {int(group) for _, batch in batches for group in batch.column("group").to_pylist() if group is not None}
    except (RunError, KeyError, ValueError, TypeError):
        return set()
