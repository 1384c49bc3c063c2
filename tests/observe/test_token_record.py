"""rollouts/step-<N>.tokens.parquet: what is written comes back, what is missing is null, and which groups are worth it."""

from __future__ import annotations

import math
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cohort.errors import RunError
from cohort.observe import rollouts as files
from cohort.observe.rollouts import (
    MAX_TOKENS,
    NUMBERS,
    TokenRow,
    choose_groups,
    choose_rows,
    list_token_steps,
    order_useful_first,
    read_tokens,
    write_tokens,
)

NAN = math.nan
TRAINED = TokenRow(
    group=3, sample=1, row=25, update=2, updates=4, length=3,
    pieces=["12", "", "é<eos>"], token_ids=[5, 6, 2], mask=[True, False, True],
    numbers={
        "advantage": [0.5, NAN, 0.5], "sampling_logprob": [-1.0, NAN, -0.25], "old_logprob": [-1.0, NAN, -0.5],
        "policy_logprob": [-0.75, NAN, -0.5], "entropy": [1.5, NAN, 0.0], "ratio": [1.25, NAN, 1.0],
        "clipped": [1, NAN, -1], "coefficient": [0.0, NAN, 0.5], "weight": [0.125, NAN, 0.125],
    },
)  # fmt: skip
LEFT_OUT = TokenRow(4, 0, 32, None, 4, [], [], [], {}, 0)
SKIPPED = TokenRow(4, 1, 33, 1, 4, ["x", "y"], [7, 8], [True, True], {"advantage": [0.0, 0.0], "coefficient": [0.0, 0.0]}, 900)


def test_what_is_written_comes_back(tmp_path):
    file = tmp_path / "rollouts" / "step-000012.tokens.parquet"
    write_tokens(file, 12, [TRAINED, LEFT_OUT, SKIPPED])
    first, second, third = read_tokens(file)
    assert first == {
        "step": 12, "group": 3, "sample": 1, "row": 25, "update": 2, "updates": 4, "length": 3,
        "pieces": ["12", "", "é<eos>"], "token_ids": [5, 6, 2], "mask": [True, False, True],
        "advantage": [0.5, None, 0.5], "sampling_logprob": [-1.0, None, -0.25], "old_logprob": [-1.0, None, -0.5],
        "policy_logprob": [-0.75, None, -0.5], "ref_logprob": None, "entropy": [1.5, None, 0.0], "ratio": [1.25, None, 1.0],
        "clipped": [1, None, -1], "coefficient": [0.0, None, 0.5], "weight": [0.125, None, 0.125],
    }  # fmt: skip
    assert (second["update"], second["pieces"], second["advantage"], second["coefficient"]) == (None, [], None, None)
    assert (third["coefficient"], third["advantage"], third["ratio"], third["length"]) == ([0.0, 0.0], [0.0, 0.0], None, 900)
    assert [row["sample"] for row in read_tokens(file, group=4)] == [0, 1]
    assert read_tokens(file, group=9) == []
    assert list_token_steps(file.parent) == [12]
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_a_file_without_rows_is_a_file(tmp_path):
    write_tokens(tmp_path / "step-000001.tokens.parquet", 1, [])
    assert read_tokens(tmp_path / "step-000001.tokens.parquet") == []


def test_the_most_that_is_written_stays_below_two_megabytes(tmp_path):
    """Numbers without any pattern, and texts of a large vocabulary."""
    noise, draw = np.random.default_rng(0), random.Random(0)
    words = ["".join(draw.choices("abcdefghij \u00e9\u6570", k=draw.randint(2, 9))) for _ in range(20_000)]
    rows = []
    for place in range(64):
        length = MAX_TOKENS // 64
        ids = noise.integers(0, 150_000, length)
        numbers = {name: noise.normal(size=length) for name in NUMBERS if name not in files.REPEATED}
        numbers |= {"advantage": np.full(length, noise.normal()), "weight": np.full(length, noise.random())}
        numbers["clipped"] = noise.integers(-1, 2, length)
        pieces = [words[token % len(words)] for token in ids]
        rows.append(TokenRow(place // 16, place % 16, place, 1, 1, pieces, ids, [True] * length, numbers, length))
    file = tmp_path / "step-000001.tokens.parquet"
    write_tokens(file, 1, rows)
    assert file.stat().st_size < 2e6
    assert read_tokens(file)[5]["ratio"] == np.float32(rows[5].numbers["ratio"]).tolist()


def test_no_flipped_byte_goes_unnoticed_or_aborts_the_process(tmp_path):
    """Arrow's page checksums do not cover the metadata, and some damage there ends the process in C++."""
    file = tmp_path / "step-000001.tokens.parquet"
    write_tokens(file, 1, [TRAINED])
    whole, rows = file.read_bytes(), read_tokens(file)
    assert pq.read_table(file).num_rows == 1  # other readers skip the checksum
    seal = whole.index(files.SEAL)
    for place in [*range(0, len(whole), 11), *range(seal, seal + len(files.SEAL) + 4), *range(len(whole) - 8, len(whole))]:
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        if seal <= place < seal + len(files.SEAL):
            assert read_tokens(file) == rows
            continue
        with pytest.raises(RunError, match="it does not match its checksum"):
            read_tokens(file)
        assert not files.is_intact(file, 1)


def test_broken_and_foreign_files_are_named(tmp_path):
    file = tmp_path / "step-000001.tokens.parquet"
    with pytest.raises(RunError, match="cannot be read"):
        read_tokens(file)
    file.write_bytes(b"PAR1 torn")
    with pytest.raises(RunError, match="cannot be read"):
        read_tokens(file)
    pq.write_table(pa.table({"group": [1]}), file)
    with pytest.raises(RunError, match="its columns are not those that a run writes"):
        read_tokens(file)
    pq.write_table(pa.table({"group": pa.array(np.zeros(3_000_000, np.int8))}), file)  # a few kilobytes
    assert file.stat().st_size < 100_000
    with pytest.raises(RunError, match="larger than any file that a run writes"):
        read_tokens(file)


def test_groups_that_teach_come_first():
    rewards = {0: [0.0, 0.0], 1: [None, 1.0], 2: [0.0, 1.0], 3: [1.0, None, 0.5], 4: [1.0, 0.0], 5: [1.0, 0.5], 6: [0.0, 2.0]}
    assert order_useful_first(rewards) == [2, 3, 4, 5, 6, 0, 1]
    assert choose_groups(rewards, [], more=True) == [2, 3, 4, 5]
    assert choose_groups(rewards, [6, 4], more=True) == [6, 4, 2, 3, 5]
    assert choose_groups(rewards, [6, 4], more=False) == [6, 4]
    assert choose_groups({0: [0.0], 1: [1.0]}, [], more=True) == [0, 1]


def test_rows_fit_into_the_file(monkeypatch):
    monkeypatch.setattr(files, "MAX_TOKENS", 100)
    members, credit = {0: [0, 1, 2], 1: [3, 4, 5], 2: [6, 7, 8]}, [0.0, 1.0, -1.0] * 3
    assert choose_rows([], members, [], []) == {}
    assert choose_rows([1, 0], members, [10] * 9, credit) == dict.fromkeys(range(6), 10)
    # The second group is too long for what the first leaves; the third is not.
    assert choose_rows([0, 1, 2], members, [20, 20, 20, 20, 20, 20, 10, 10, 10], credit) == {
        0: 20,
        1: 20,
        2: 20,
        6: 10,
        7: 10,
        8: 10,
    }
    # The first is too long by itself: its best and its worst are shown.
    assert choose_rows([0, 1], members, [40, 41, 42, 20, 20, 20, 10, 10, 10], credit) == {1: 41, 2: 42}
    # No completion fits: the beginning of the best.
    assert choose_rows([0], members, [300] * 9, credit) == {1: 100}


def test_a_group_too_long_is_shown_from_both_ends():
    assert files.alternate_ends([1, 2, 3, 4]) == [1, 4, 2, 3]
    assert files.alternate_ends([1, 2, 3]) == [1, 3, 2]
    assert files.alternate_ends([]) == []
