"""rollouts/index.bin: one short record for every completion that was kept, so that nobody scans parquet to find one. No torch.

    rows = read_index(folder.index_file)                   # a numpy array of ROW over the file itself; nothing is read yet
    rows[(rows["step"] == 12) & (rows["flags"] & WRONG_REWARDED != 0)]

Records are little-endian and of one width, the steps ascend, and a step is written with one call: what a crash leaves is whole records
and at most a part of one behind them, which readers leave out and the next step overwrites.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cohort.types import Rollout

ROW = np.dtype(
    [
        ("step", "<u4"),
        ("group", "<u4"),
        ("sample", "<u2"),
        ("row", "<u4"),
        ("prompt_index", "<i8"),
        ("reward", "<f8"),
        ("advantage", "<f4"),
        ("length", "<u4"),
        ("end", "u1"),
        ("success", "i1"),
        ("flags", "u1"),
    ]
)
"""row: place in the step's parquet file; reward: NaN where nobody scored; end: 0 stop, 1 length; success: -1 where nobody judged."""
DUPLICATE, WRONG_REWARDED, EVIDENCE = 1, 2, 4
"""flags: the tokens are those of an earlier completion of the group; judged wrong and paid nevertheless; named by the evidence of a
finding that stood when the step was written down."""

ENDS = 100_000
"""Records at either end that are read at once: 4 MB."""

Rows = npt.NDArray[np.void]


def make_rows(
    step: int, rollouts: Sequence[Rollout], advantages_N: Sequence[float], evidence_rows: Collection[int] = ()
) -> Rows:
    """The records of a step. evidence_rows: places of the completions that a finding names."""
    outcomes = [rollout.outcome for rollout in rollouts]
    return fill_rows(
        {
            "step": step,
            "group": [rollout.group for rollout in rollouts],
            "sample": [rollout.sample for rollout in rollouts],
            "prompt_index": [rollout.prompt.index for rollout in rollouts],
            "reward": [np.nan if outcome.reward is None else outcome.reward for outcome in outcomes],
            "advantage": advantages_N,
            "length": [rollout.completion.length for rollout in rollouts],
            "end": [rollout.completion.end == "length" for rollout in rollouts],
            "success": [-1 if outcome.success is None else outcome.success for outcome in outcomes],
        },
        [rollout.completion.token_ids for rollout in rollouts],
        evidence_rows,
    )


def fill_rows(columns: Mapping[str, Any], token_ids: Sequence[tuple[int, ...]], evidence_rows: Collection[int] = ()) -> Rows:
    """Records of these columns, numbered, with their flags."""
    rows = np.zeros(len(token_ids), ROW)
    for name, values in columns.items():
        rows[name] = values
    rows["row"] = np.arange(len(rows))
    seen: set[tuple[int, tuple[int, ...]]] = set()
    flags = []
    for key in zip(rows["group"].tolist(), token_ids, strict=True):
        count = len(seen)
        seen.add(key)
        flags.append(DUPLICATE * (len(seen) == count))
    rows["flags"] = flags
    rows["flags"] |= WRONG_REWARDED * ((rows["success"] == 0) & (rows["reward"] > 0)).astype(np.uint8)
    rows["flags"][sorted(evidence_rows)] |= EVIDENCE
    return rows


def append_rows(
    file: Path, step: int, rollouts: Sequence[Rollout], advantages_N: Sequence[float], evidence_rows: Collection[int] = ()
) -> None:
    """Add the records of a step behind those of earlier steps. What the file holds of this step and of later ones is replaced."""
    truncate_index(file, step - 1)
    file.parent.mkdir(exist_ok=True)
    with file.open("ab") as stream:
        stream.write(make_rows(step, rollouts, advantages_N, evidence_rows).tobytes())


def read_index(file: Path) -> Rows:
    """All whole records of the file, read from it as they are looked at; none where there is no file."""
    try:
        count = file.stat().st_size // ROW.itemsize
        return np.memmap(file, ROW, "r", shape=(count,)) if count else np.zeros(0, ROW)
    except (OSError, ValueError):  # gone or cut short between the two calls
        return np.zeros(0, ROW)


def read_ends(file: Path) -> tuple[Rows, Rows]:
    """The whole steps among the first and among the last records, copied: a map of the file would break where a resume cuts it."""
    try:
        count = file.stat().st_size // ROW.itemsize
        skipped = max(0, count - ENDS)
        first, last = np.fromfile(file, ROW, ENDS), np.fromfile(file, ROW, ENDS, offset=skipped * ROW.itemsize)
    except (OSError, ValueError):
        return np.zeros(0, ROW), np.zeros(0, ROW)
    if skipped:  # the steps at the cuts may not be whole
        first, last = first[first["step"] != first["step"][-1]], last[last["step"] != last["step"][0]]
    return first, last


def truncate_index(file: Path, step: int) -> None:
    """Forget what came after a step, and a torn end, so that a step that runs again is not there twice."""
    rows = read_index(file)
    if file.is_file():
        # Steps ascend, so the last record says whether there is anything to look for.
        late = len(rows) and int(rows["step"][-1]) > step
        size = ROW.itemsize * (int(np.argmax(rows["step"] > step)) if late else len(rows))
        del rows  # no map of what is cut off
        if size != file.stat().st_size:
            os.truncate(file, size)


def replace_index(file: Path, rows: Rows) -> None:
    """Write the whole index anew, by steps, in one move."""
    temporary = file.with_suffix(".tmp")
    temporary.write_bytes(rows[np.lexsort((rows["row"], rows["step"]))].tobytes())
    temporary.replace(file)
