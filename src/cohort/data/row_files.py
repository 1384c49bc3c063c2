"""Files of rows, by their ending. Each reader gives (place, row) and names the place of a defect. Imports no torch."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from cohort.errors import PromptError


def number_rows(rows: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    return ((f"row {number}", row) for number, row in enumerate(rows))


def read_jsonl(path: Path) -> Iterator[tuple[str, Any]]:
    # utf-8-sig: files saved by spreadsheet programs begin with a byte-order mark, which is no part of the JSON.
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield f"line {number}", json.loads(line.rstrip())
            except json.JSONDecodeError as problem:
                raise PromptError(
                    f"{path}, line {number}, column {problem.colno}: not valid JSON ({problem.msg}). "
                    f"Each line must be one object; the line begins {line.strip()[:60]!r}"
                ) from None


def read_json(path: Path) -> Iterator[tuple[str, Any]]:
    """A list of objects, or an object whose `data` is one. What is otherwise shaped is refused with what to do about it."""
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as problem:
        if problem.msg == "Extra data":
            fix = "it holds several values one after another; one object per line is JSON lines: name the file .jsonl"
        else:
            fix = f"not valid JSON ({problem.msg})"
        raise PromptError(f"{path}, line {problem.lineno}, column {problem.colno}: {fix}") from None
    except RecursionError:
        raise PromptError(f"{path}: nested too deeply to be rows") from None
    rows = document.get("data") if isinstance(document, dict) else document
    if not isinstance(rows, list):
        keys = f" with the keys {', '.join(map(repr, list(document)[:8]))}" if isinstance(document, dict) else ""
        raise PromptError(
            f'{path}: rows are a list, [{{"prompt": ...}}, ...] or {{"data": [...]}}; the file holds one {type(document).__name__}{keys}'
        )
    yield from number_rows(rows)


def read_csv(path: Path) -> Iterator[tuple[str, Any]]:
    """Every value stays the text that is in the file: a guessed type would turn the answer 007 into 7 and NA into null."""
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines, strict=True)
        try:
            header = next(reader, [])
            repeated = sorted({name for name in header if header.count(name) > 1})
            if repeated:
                raise PromptError(f"{path}, line 1: column {repeated[0]!r} occurs twice")
            for cells in reader:
                if not cells:
                    continue
                if len(cells) != len(header):
                    raise PromptError(
                        f"{path}, line {reader.line_num}: {len(cells)} cells for {len(header)} columns "
                        f"({', '.join(header)}); put quotes around text that contains commas"
                    )
                yield f"line {reader.line_num}", dict(zip(header, cells, strict=True))
        except csv.Error as problem:
            raise PromptError(f"{path}, line {reader.line_num}: not valid CSV ({problem})") from None


def read_parquet(path: Path) -> Iterator[tuple[str, Any]]:
    import pyarrow as arrow
    import pyarrow.parquet

    try:
        with arrow.parquet.ParquetFile(path) as table:
            number = itertools.count()
            for batch in table.iter_batches(batch_size=1024):
                yield from ((f"row {next(number)}", row) for row in batch.to_pylist())
    except (arrow.ArrowException, OSError) as problem:
        raise PromptError(f"{path}: not a readable parquet file ({problem})") from problem


def read_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """The rows of a file, by the reader of its ending."""
    try:
        yield from READERS[path.suffix](path)
    except UnicodeDecodeError as problem:
        raise PromptError(f"{path}: not UTF-8 text ({problem.reason} at byte {problem.start}); save it as UTF-8") from None


READERS: dict[str, Callable[[Path], Iterator[tuple[str, Any]]]] = {
    ".jsonl": read_jsonl,
    ".json": read_json,
    ".parquet": read_parquet,
    ".csv": read_csv,
}
