"""rollouts/index.bin: what its records say, and that a torn, foreign or vanished file never stops a reader."""

from __future__ import annotations

import os

import numpy as np
import pytest

from cohort.observe.rollouts import (
    DUPLICATE,
    EVIDENCE,
    ROW,
    WRONG_REWARDED,
    append_rows,
    read_index,
    truncate_index,
)
from conftest import rollout

STEP = [
    rollout(0, 0, 1.0),
    rollout(0, 1, 0.25, success=False, length=5, end="length"),
    rollout(0, 2, 1.0),
    rollout(1, 0, None),
    rollout(1, 1, 0.0, mask=(True, False, True)),
    rollout(1, 2, -0.5, success=False, token_ids=(9, 9)),
]
ADVANTAGES = [0.5, -1.0, 0.5, 0.0, 0.7, -0.7]


@pytest.fixture
def index(tmp_path):
    file = tmp_path / "rollouts" / "index.bin"
    for step in (1, 2, 4):
        append_rows(file, step, STEP, ADVANTAGES, evidence_rows={4} if step == 2 else ())
    return file


def test_a_record_says_what_the_rollout_says(index):
    rows = read_index(index)
    assert ROW.itemsize == 41
    assert os.path.getsize(index) == 18 * 41
    assert rows["step"].tolist() == [1] * 6 + [2] * 6 + [4] * 6
    second = rows[rows["step"] == 2]
    assert second["group"].tolist() == [0, 0, 0, 1, 1, 1]
    assert second["sample"].tolist() == [0, 1, 2, 0, 1, 2]
    assert second["row"].tolist() == [0, 1, 2, 3, 4, 5]
    assert second["prompt_index"].tolist() == [0, 0, 0, 1, 1, 1]
    np.testing.assert_array_equal(second["reward"], [1.0, 0.25, 1.0, np.nan, 0.0, -0.5])
    np.testing.assert_array_equal(second["advantage"], np.float32(ADVANTAGES))
    assert second["length"].tolist() == [3, 5, 3, 3, 2, 2]
    assert second["end"].tolist() == [0, 1, 0, 0, 0, 0]
    assert second["success"].tolist() == [1, 0, 1, -1, 0, 0]
    # The third is the first once more. Of the second group the first two have the same tokens, whatever became of them.
    assert second["flags"].tolist() == [0, WRONG_REWARDED, DUPLICATE, 0, DUPLICATE | EVIDENCE, 0]
    assert rows[rows["step"] == 1]["flags"].tolist() == [0, WRONG_REWARDED, DUPLICATE, 0, DUPLICATE, 0]


def test_a_step_that_runs_again_is_there_once(index):
    before = index.read_bytes()
    append_rows(index, 4, STEP, ADVANTAGES)
    assert index.read_bytes() == before
    append_rows(index, 2, STEP[:1], [0.0])
    assert read_index(index)["step"].tolist() == [1] * 6 + [2]


def test_a_resumed_run_forgets_later_steps(index):
    whole = index.read_bytes()
    truncate_index(index, 4)
    assert index.read_bytes() == whole
    truncate_index(index, 3)
    assert index.read_bytes() == whole[: 12 * 41]
    truncate_index(index, 0)
    assert index.read_bytes() == b""
    append_rows(index, 1, STEP, ADVANTAGES)
    assert index.read_bytes() == whole[: 6 * 41]


@pytest.mark.parametrize("torn", [1, 40, 41 + 7])
def test_a_torn_end_is_left_out_and_written_over(index, torn):
    whole = index.read_bytes()
    index.write_bytes(whole[:-torn])
    kept = (len(whole) - torn) // 41
    assert len(read_index(index)) == kept
    assert read_index(index).tobytes() == whole[: 41 * kept]
    append_rows(index, 5, STEP, ADVANTAGES)
    assert read_index(index)["step"].tolist() == ([1] * 6 + [2] * 6 + [4] * 6)[:kept] + [5] * 6
    assert os.path.getsize(index) % 41 == 0


def test_files_that_are_no_index_stop_nobody(tmp_path):
    file = tmp_path / "index.bin"
    truncate_index(file, 3)
    assert len(read_index(file)) == 0
    assert not file.exists()
    file.write_bytes(b"")
    assert len(read_index(file)) == 0
    file.write_bytes(b"\xff" * 1000)
    assert len(read_index(file)) == 24
    truncate_index(file, 3)
    assert file.read_bytes() == b""
    (tmp_path / "folder").mkdir()
    assert len(read_index(tmp_path / "folder")) == 0
    truncate_index(tmp_path / "folder", 3)
