"""What finished steps have left in a run folder, and what of it is missing or damaged. No torch.

Nothing of it is needed to go on: it is what a person looks at. So it is mentioned, once, when the run is taken up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cohort.observe.monitors.jsonl import read_rows
from cohort.observe.rollouts import list_kept_steps
from cohort.observe.run_folder import RunFolder
from cohort.observe.token_record import list_recorded_steps
from cohort.recipe.schema import Recipe

MOST_SHOWN = 8
"""Steps that are named one by one."""


def find_losses(folder: RunFolder, recipe: Recipe, done: int) -> Iterator[str]:
    """A sentence for each kind of record that the first `done` steps should have left and that is not there, or not whole."""
    written = list_steps(folder.metrics())
    if lacking := [step for step in range(1, done + 1) if step not in written]:
        yield f"metrics.jsonl has no row of {name_steps(lacking)}: charts and findings leave them out"
    every = recipe.evaluation.every_steps if recipe.evaluation.samples else 0
    measured = list_steps(row for row in folder.evaluations() if row.get("label") == "during")
    last = min(done, recipe.train.num_steps - 1)
    if every and (lacking := [step for step in range(every, last + 1, every) if step not in measured]):
        yield f"evaluations.jsonl has no evaluation of {name_steps(lacking)}: the report leaves them out"
    every = recipe.monitors.rollouts_every
    files = {step: folder.rollouts_file(step) for step in (range(every, done + 1, every) if every else ())}
    if lacking := [step for step, file in files.items() if not is_whole(file, step)]:
        yield f"rollouts/ has no whole file of {name_steps(lacking)}: their completions are lost, the training is not"
    recorded = [step for step in list_recorded_steps(folder.rollouts) if step <= done]
    if lacking := [step for step in recorded if not is_whole(folder.tokens_file(step), step)]:
        yield f"rollouts/ has no whole file of single tokens of {name_steps(lacking)}: what the updates did to them is lost, the training is not"
    if any(row.get("label") == "before" for row in folder.evaluations()) and not has_rows(folder.samples / "before.jsonl"):
        yield "samples/before.jsonl is lost or damaged: the report lacks completions from before the training"


def restore_index(folder: RunFolder, done: int) -> Iterator[str]:
    """Read again from rollouts/ what index.bin lacks of the first `done` steps; a sentence where it lacked any.

    A run that was begun before there was an index has none, and then gets one. Which completions findings had named is not known again.
    """
    import numpy as np

    from cohort.observe.row_index import read_index, replace_index

    if not folder.owned:
        return
    index = np.array(read_index(folder.index_file))
    steps, counts = np.unique(index["step"], return_counts=True)
    known = dict(zip(steps.tolist(), counts.tolist(), strict=True))
    kept_steps = [step for step in list_kept_steps(folder.rollouts) if step <= done]
    read = {step: read_index_rows(folder.rollouts_file(step), step, known.get(step, 0)) for step in kept_steps}
    found = {step: rows for step, rows in read.items() if rows is not None}
    if found:
        kept = index[~np.isin(index["step"], list(found))]
        replace_index(folder.index_file, np.concatenate([kept, *found.values()]))
        yield f"rollouts/index.bin had no records of {name_steps(list(found))}: read again from rollouts/"


def read_index_rows(file: Path, step: int, known: int) -> Any:
    """The records of a step from its file; None where it cannot be read, or has as many as are known."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from cohort.observe.row_index import fill_rows

    try:
        with pa.OSFile(str(file)) as stream:  # as in read_rollouts
            opened = pq.ParquetFile(stream)
            if opened.metadata.num_rows == known:
                return None
            columns = opened.read(columns=[name for name in opened.schema_arrow.names if name in INDEXED]).to_pydict()
        token_ids = [tuple(ids) for ids in columns.pop("completion_ids")]
        columns = {"length": [len(ids) for ids in token_ids], **columns, "step": step}  # files of older runs have no lengths
        columns["end"] = [end == "length" for end in columns["end"]]
        columns["success"] = [-1 if success is None else success for success in columns["success"]]
        columns["reward"] = [np.nan if reward is None else reward for reward in columns["reward"]]
        return fill_rows(columns, token_ids)
    except (OSError, ValueError, LookupError, TypeError, pa.ArrowException):  # find_losses names it
        return None


INDEXED = ("group", "sample", "prompt_index", "reward", "advantage", "length", "end", "success", "completion_ids")
"""Columns of a file of rollouts that index.bin repeats."""


def list_steps(rows: Iterable[Mapping[str, Any]]) -> set[Any]:
    return {row.get("step") for row in rows}


def has_rows(file: Path) -> bool:
    """Whether every line of the file can be read."""
    return file.is_file() and len(read_rows(file)) == len(file.read_bytes().splitlines()) > 0


def is_whole(file: Path, step: int) -> bool:
    """Whether every page of a parquet file is as it was written, and its rows are those of the step."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pa.OSFile(str(file)) as stream:  # as in read_rollouts
            table = pq.read_table(stream, page_checksum_verification=True)
    except (OSError, ValueError, pa.ArrowException):
        return False
    return "step" in table.column_names and table["step"].unique().to_pylist() in ([step], [])


def name_steps(steps: list[int]) -> str:
    """step 3; steps 3, 4, 9 and 12 more"""
    shown = ", ".join(map(str, steps[:MOST_SHOWN]))
    more = f" and {len(steps) - MOST_SHOWN} more" if len(steps) > MOST_SHOWN else ""
    return f"step{'' if len(steps) == 1 else 's'} {shown}{more}"
