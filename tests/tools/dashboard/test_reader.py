"""Incremental reading: the same rows as reading the whole file, each line parsed once, and a count of skipped lines."""

from __future__ import annotations

import json
import os
import random

import pytest

from cohort.observe.monitors.jsonl import parse_line, read_rows, truncate_after
from cohort.tools.dashboard import reader
from cohort.tools.dashboard.reader import Bounds, LineFile, Reader, parse_at_once, parse_each, sample_rows

HOSTILE = [
    b"", b"   ", b"{}", b'{"step": 1}', b"[]", b"null", b"7", b'{"a": 1},{"b": 2}', b'{"a": [1', b"2]}", b"{", b"}", b'"', b"\\", b"\xff\xfe",
    b'{"a": NaN}', b'{"a": 1e999}', b"[" * 100_000, b'{"a":' * 100_000, b'{"step": 2} trailing', "\ufeff{}".encode(), b'{"a": "\\ud800"}', b"9" * 10_000,
]  # fmt: skip


def make_lines(count: int, first: int = 1) -> bytes:
    rng = random.Random(first)
    return b"".join(
        json.dumps({"step": step, "reward/mean": rng.random(), "text": "é\u2028"}).encode() + b"\n"
        for step in range(first, first + count)
    )


@pytest.mark.parametrize("seed", range(20))
def test_lines_at_once_are_the_same_rows_as_line_by_line(seed):
    rng = random.Random(seed)
    lines = [rng.choice(HOSTILE) if rng.random() < 0.3 else b'{"step": %d}' % number for number in range(rng.randrange(60))]
    rows, alone = parse_at_once(lines), [row for line in lines if (row := parse_line(line)) is not None]
    assert repr(parse_each(lines)) == repr(alone)  # NaN is not itself
    assert rows is None or repr(rows) == repr(alone)
    assert parse_at_once([b'{"step": 1}', b"7", b'{"step": 2}']) == [{"step": 1}, {"step": 2}]


def test_appended_pieces_give_the_same_rows_as_the_whole_file_and_are_parsed_once(tmp_path):
    """Pieces end inside of lines and characters; a line is parsed again only while it has no end."""
    path, rng = tmp_path / "metrics.jsonl", random.Random(3)
    whole = make_lines(200) + b'{"step": broken}\n\n[1]\n' + make_lines(300, 201)
    file, place, looks = LineFile(path), 0, 0
    while place < len(whole):
        size = rng.randrange(1, 900)
        with path.open("ab") as stream:
            stream.write(whole[place : place + size])
        place += size
        assert file.look() == read_rows(path)
        looks += 1
    assert file.parsed == 502
    assert file.losses.broken == 2
    assert not file.losses.torn
    assert looks > 50
    before = file.parsed
    assert file.look() is file.rows
    assert file.parsed == before


def test_an_incomplete_last_line_is_counted_and_later_shown(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(make_lines(3) + b'{"step": 4, "rew')
    file = LineFile(path)
    assert [row["step"] for row in file.look()] == [1, 2, 3]
    assert file.losses.describe("metrics.jsonl") == "metrics.jsonl: the last line is incomplete."
    with path.open("ab") as stream:
        stream.write(b'ard/mean": 1}')  # whole, and without its end
    assert [row["step"] for row in file.look()] == [1, 2, 3, 4]
    assert file.losses.describe("x") == ""
    with path.open("ab") as stream:
        stream.write(b'\n{"step": 5}\n')
    assert [row["step"] for row in file.look()] == [1, 2, 3, 4, 5]


def test_a_replaced_truncated_or_overwritten_file_is_read_again(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(make_lines(30))
    file = LineFile(path)
    assert len(file.look()) == 30
    truncate_after(path, 20)  # as a resume does: another file of that name
    assert file.look() == read_rows(path)
    with path.open("ab") as stream:
        stream.write(make_lines(4, 21))
    assert len(file.look()) == 24
    os.truncate(path, 100)
    assert file.look() == read_rows(path)
    written_over = make_lines(40, 1000)
    with path.open("r+b") as stream:
        stream.write(written_over)
    assert file.look() == read_rows(path)
    path.unlink()
    assert file.look() == []
    path.write_bytes(make_lines(2))
    assert len(file.look()) == 2


def test_large_files_are_read_at_both_ends_and_skipped_lines_counted(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(make_lines(5000))
    file = LineFile(path, Bounds(whole=100_000, head=20_000, tail=30_000))
    rows = file.look()
    steps = [row["step"] for row in rows]
    assert steps[0] == 1
    assert steps[-1] == 5000
    assert len(rows) + file.losses.skipped == 5000
    assert file.losses.broken == 0
    assert f"{file.losses.skipped:,} lines skipped because the file is too large" in file.losses.describe("metrics.jsonl")
    before = file.parsed
    with path.open("ab") as stream:
        stream.write(make_lines(3, 5001))
    assert [row["step"] for row in file.look()][-3:] == [5001, 5002, 5003]
    assert file.parsed == before + 3


def test_a_slow_count_is_stopped_and_reported_as_a_lower_bound(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(make_lines(5000))
    monkeypatch.setattr(reader, "COUNT_S", -1.0)
    monkeypatch.setattr(reader, "CHUNK", 10_000)
    file = LineFile(path, Bounds(whole=100_000, head=20_000, tail=30_000))
    file.look()
    assert file.losses.more
    assert 0 < file.losses.skipped < 5000 - len(file.rows)
    assert file.losses.describe("m").startswith("m: at least ")


def test_among_many_broken_lines_whole_batches_are_skipped(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "MAX_BROKEN", 600)
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(make_lines(1000) + b"{\n" * 3000 + make_lines(1000, 1001))
    file = LineFile(path, Bounds(1 << 20, 1, 1))
    assert [row["step"] for row in file.look()] == list(range(1, 2001))
    assert (file.losses.broken, file.losses.skipped) == (1000, 2000)


def test_an_endless_line_is_read_within_limits(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "text": "' + b"x" * 500_000)
    file = LineFile(path, Bounds(whole=100_000, head=20_000, tail=30_000))
    assert file.look() == []
    assert file.held <= 100_000


def test_the_least_recently_read_rows_are_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "MAX_HELD", 5_000)
    kept = Reader()
    for name in "abc":
        (tmp_path / name).write_bytes(make_lines(60))
        assert len(kept.look(tmp_path / name).rows) == 60
    assert sum(file.held for file in kept._files.values()) <= 5_000
    assert len(kept.look(tmp_path / "a").rows) == 60


def test_a_sample_has_both_ends_and_a_constant_cost(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(make_lines(100_000))
    steps = [row["step"] for row in sample_rows(path)]
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1]) == (1, 100_000)
    assert 40 <= len(steps) <= 60
    with path.open("ab") as stream:
        stream.write(b'{"step": 100001, "rew')
    assert sample_rows(path)[-1]["step"] == 100_000
    path.write_bytes(make_lines(10))
    assert len(sample_rows(path)) == 10
    assert sample_rows(tmp_path / "none") == []
