"""A contender that trains on what stands in the rows needs its columns: looked up before hours of other runs. No torch."""

from __future__ import annotations

from pathlib import Path

from cohort.data.prompts import CHOSEN, REJECTED, read_demonstration, read_preference
from cohort.data.rows import READERS, load_rows
from cohort.errors import PromptError
from cohort.tools.compare.contenders import Contender
from cohort.types import Prompt

FIRST_ROWS = 4


def refuse_missing_columns(contender: Contender, seed: int) -> None:
    """Looks at the first rows of a task or a file; what comes from the hub or from code is met when the run begins."""
    recipe = contender.recipe
    data, own = recipe.algorithm.data, recipe.cold_start.source
    if data not in ("pairs", "demonstrations"):
        return
    config = recipe.prompts if data == "pairs" or isinstance(own, str) else own
    if not is_at_hand(config.source):
        return
    first = min(config.limit or FIRST_ROWS, FIRST_ROWS)
    try:
        for index, row in enumerate(load_rows(config.model_copy(update={"limit": first}), seed)):
            prompt = Prompt(index, "", {name: value for name, value in row.items() if name != config.prompt_column}, ())
            if data == "pairs":
                for column in (CHOSEN, REJECTED):
                    read_preference(prompt, column)
            else:
                read_demonstration(prompt, recipe.cold_start.completion_column)
    except PromptError as problem:
        raise PromptError(f"contender {contender.label}: {problem}") from None


def is_at_hand(source: str) -> bool:
    """A built-in task, a gym task, a file or a folder: its first rows cost nothing."""
    path = Path(source).expanduser()
    return source.startswith(("task:", "gym:")) or path.suffix in READERS or path.is_file() or path.is_dir()
