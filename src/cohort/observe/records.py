"""What finished steps have left in a run folder, and what of it is missing or damaged. No torch.

Nothing of it is needed to go on: it is what a person looks at. So it is mentioned, once, when the run is taken up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cohort.observe.monitors.jsonl import read_rows
from cohort.observe.run_folder import RunFolder
from cohort.recipe.schema import Recipe

MOST_SHOWN = 8
"""Steps that are named one by one."""


def find_losses(folder: RunFolder, recipe: Recipe, done: int) -> Iterator[str]:
    """A sentence for each kind of record that the first `done` steps should have left and that is not there, or not whole."""
    if lacking := [step for step in range(1, done + 1) if step not in list_steps(folder.metrics())]:
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
    if any(row.get("label") == "before" for row in folder.evaluations()) and not has_rows(folder.samples / "before.jsonl"):
        yield "samples/before.jsonl is lost or damaged: the report lacks completions from before the training"


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
        with file.open("rb") as stream:  # not its path: see read_rollouts
            table = pq.read_table(stream, page_checksum_verification=True)
    except (OSError, ValueError, pa.ArrowException):
        return False
    return "step" in table.column_names and table["step"].unique().to_pylist() in ([step], [])


def name_steps(steps: list[int]) -> str:
    """step 3; steps 3, 4, 9 and 12 more"""
    shown = ", ".join(map(str, steps[:MOST_SHOWN]))
    more = f" and {len(steps) - MOST_SHOWN} more" if len(steps) > MOST_SHOWN else ""
    return f"step{'' if len(steps) == 1 else 's'} {shown}{more}"
