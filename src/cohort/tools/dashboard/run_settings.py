"""What a page needs of a run's recipe, without opening anything else of the run."""

from __future__ import annotations

from typing import Any

from cohort.observe.report.data import parse_recipe
from cohort.tools.dashboard.reader import read_bounded
from cohort.tools.dashboard.shelf import ShownRun


def read_recipe(run: ShownRun) -> dict[str, Any]:
    """The recipe as plain values; {} where it cannot be read."""
    file = run.find_file(run.folder.recipe_file)
    return parse_recipe(read_bounded(file)) if file else {}
