"""Damaged files of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LINES = ("metrics.jsonl", "evaluations.jsonl", "events.jsonl", "ranks.jsonl", "samples/before.jsonl")
"""Files of a JSON object per line."""
GARBAGE = bytes(range(256)) * 8
DEEP = b"[" * 100_000
BAD_LINES = {
    "half of a line": b'{"step": 3, "reward/me',
    "no JSON": b"reward: 3",
    "bytes that are no UTF-8": b'{"step": "\xff\xfe"}',
    "zeros": b"\0" * 4096,
    "a list": b"[1, 2, 3]",
    "very deep": b'{"step": 1, "x": ' + DEEP,
    "a number of 10,000 digits": b'{"step": 1, "x": ' + b"9" * 10_000 + b"}",
}
"""Lines that no reader can use; each is skipped, and counted."""
ODD_LINES = {
    "infinite numbers": b'{"step": 2, "reward/mean": Infinity, "reward/success": NaN, "time/step": -Infinity}',
    "large numbers": b'{"step": 2, "reward/mean": 1e308, "reward/success": -1e308, "time/step": 1e300}',
    "a step in the year 10,000": b'{"step": 4e300, "label": "during", "reward/mean": 0.5, "time/step": 1, "sets": {}}',
    "steps that are none": b'{"step": "three", "reward/mean": "much", "kind": 7, "text": {"a": 1}, "time": "noon", "sets": 3, "label": []}',
    "a step below zero": b'{"step": -5, "reward/mean": 0.5, "kind": "message", "text": "x", "time": -1e18}',
    "texts for numbers": json.dumps(
        {"step": 3, "reward/mean": "x" * 10_000, "label": "after", "sets": {"held_out": {"pass@1": "all"}}}
    ).encode(),
    "lists for numbers": b'{"step": 3, "reward/mean": [1], "evidence": 5, "sets": {"a": {"pass@1": {"value": [1], "low": {}, "high": null}}}, "label": "before"}',
}
"""Lines that are JSON, and nothing that a run would write."""
WHOLE = {
    "empty": b"",
    "garbage": GARBAGE,
    "zeros": b"\0" * 65_536,
    "deep": DEEP,
    "a text": b'"hello"',
    "a list": b"[1, 2]",
    "half": None,
}
"""Contents of a file that is read as a whole; None: the first half of what was there."""
WHOLE_FILES = (
    "recipe.toml",
    "summary.json",
    "algorithm.json",
    "rollouts/index.bin",
    "rollouts/step-000004.parquet",
    "rollouts/step-000004.tokens.parquet",
)


ODD_CELLS: dict[str, Any] = {
    "texts": "x",
    "fractions": 3.5,
    "nothing": None,
    "lists": [1, 2],
    "structs": {"a": 1},
    "bytes": b"\xff\xfe",
    "no numbers": float("nan"),
    "large numbers": 2**62,
    "numbers below zero": -7,
}
"""What every cell of a parquet file is changed to: whole files, and nothing that a run would write."""
ODD_TABLES = (*ODD_CELLS, "one column", "one row")


def damage_tables(run: Path, kind: str, tokens: bool) -> None:
    """Change every parquet file of a run, of completions or of single tokens, to a table of the kind."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for file in (run / "rollouts").glob("step-*.tokens.parquet" if tokens else "step-??????.parquet"):
        with file.open("rb") as stream:
            table = pq.read_table(stream)
        if kind == "one column":
            table = table.select(table.column_names[:1])
        elif kind == "one row":
            table = table.slice(0, 1)
        else:
            table = pa.table({name: [ODD_CELLS[kind]] * table.num_rows for name in table.column_names})
        pq.write_table(table, file)


def damage_file(run: Path, name: str, content: bytes | None) -> None:
    file = run / name
    before = file.read_bytes() if file.is_file() else b""
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(before[: len(before) // 2] if content is None else content)


def add_lines(file: Path, lines: Sequence[bytes]) -> None:
    """The lines among those that are there, or stand in for them."""
    there = file.read_bytes().splitlines() if file.is_file() else [b'{"step": 1}'] * 4
    file.write_bytes(b"".join(line + b"\n" for line in [*there[:1], *lines, *there[1:]]))


def fill_file(file: Path, kind: str, size: int) -> None:
    """Make a file `size` bytes large. lines: its last line again and again; broken: lines that are none; endless: one line; zeros: a hole."""
    file.parent.mkdir(exist_ok=True)
    before = file.read_bytes() if file.is_file() else b""
    line = {
        "valid": before.splitlines()[-1] + b"\n" if before else b"{}\n",
        "broken": b'{"step": 3, "reward/me\n',
        "endless": b'{"a": [1, ',
    }.get(kind)
    with file.open("wb") as stream:
        stream.write(before if kind != "broken" else before[: len(before) // 2])
        if line is not None:
            block = line * ((1 << 22) // len(line))
            while stream.tell() < size:
                stream.write(block)
        stream.truncate(size)
