"""What finished steps have left in a run folder, and what of it is missing or damaged. No torch.

Nothing of it is needed to go on: it is what a person looks at. So it is mentioned, once, when the run is taken up.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cohort.observe.run_folder import RunFolder
from cohort.recipe.schema import Recipe

PARQUET = b"PAR1"
"""The first and the last four bytes of a whole parquet file."""
MOST_SHOWN = 8
"""Steps that are named one by one."""


def find_losses(folder: RunFolder, recipe: Recipe, done: int) -> Iterator[str]:
    """A sentence for each kind of record that the first `done` steps should have left and that is not there, or not whole."""
    if lacking := [step for step in range(1, done + 1) if step not in steps_of(folder.metrics())]:
        yield f"metrics.jsonl has no row of {name_steps(lacking)}: charts and findings leave them out"
    every = recipe.evaluation.every_steps if recipe.evaluation.samples else 0
    measured = steps_of(row for row in folder.evaluations() if row.get("label") == "during")
    last = min(done, recipe.train.num_steps - 1)
    if every and (lacking := [step for step in range(every, last + 1, every) if step not in measured]):
        yield f"evaluations.jsonl has no evaluation of {name_steps(lacking)}: the report leaves them out"
    every = recipe.monitors.rollouts_every
    files = {step: folder.rollouts_file(step) for step in (range(every, done + 1, every) if every else ())}
    if lacking := [step for step, file in files.items() if not is_whole(file)]:
        yield f"rollouts/ has no whole file of {name_steps(lacking)}: their completions are lost, the training is not"


def steps_of(rows: Iterable[Mapping[str, Any]]) -> set[Any]:
    return {row.get("step") for row in rows}


def is_whole(file: Path) -> bool:
    """Whether a parquet file begins and ends as one: a cut one does not."""
    try:
        with file.open("rb") as stream:
            head = stream.read(4)
            stream.seek(-4, os.SEEK_END)
            return head == stream.read(4) == PARQUET
    except OSError:
        return False


def name_steps(steps: list[int]) -> str:
    """step 3; steps 3, 4, 9 and 12 more"""
    shown = ", ".join(map(str, steps[:MOST_SHOWN]))
    more = f" and {len(steps) - MOST_SHOWN} more" if len(steps) > MOST_SHOWN else ""
    return f"step{'' if len(steps) == 1 else 's'} {shown}{more}"
