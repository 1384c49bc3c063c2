"""What the policy wrote, step by step: the files of rollouts/, and the rows that are handed to those who watch. No torch.

A row is one completion: the prompt, the text, its end, reward parts, verdict, what was extracted, the gold answer, the advantage, and
the columns of the row that the prompt came from, by their own names (`row/NAME` where the name is taken). The files hold token ids
and log-probs too.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from cohort.base.interrupts import defer_interrupts
from cohort.errors import RunError
from cohort.types import Prompt, Rollout

MAX_CELL = 2000
"""Characters that are kept of a row's column: tests and documents stay where they are, in row `prompt_index` of the source."""
TOKENS = ("prompt_ids", "completion_ids", "sampling_logprobs")
"""What only the files hold, and nobody reads with the eye."""
ENCODER = json.JSONEncoder(default=str)
FILE_NAME = re.compile(r"step-(\d+)\.parquet")


def list_rows(step: int, rollouts: Sequence[Rollout], advantages_N: Sequence[float]) -> list[dict[str, Any]]:
    """One plain row per completion, as read_rollouts gives them."""
    columns = list_columns(step, rollouts, advantages_N)
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def list_columns(step: int, rollouts: Sequence[Rollout], advantages_N: Sequence[float]) -> dict[str, list[Any]]:
    """Everything of a step but tokens, by column."""
    outcomes, prompts = [rollout.outcome for rollout in rollouts], [rollout.prompt for rollout in rollouts]
    completions = [rollout.completion for rollout in rollouts]
    columns: dict[str, list[Any]] = {
        "step": [step] * len(rollouts),
        "group": [rollout.group for rollout in rollouts],
        "sample": [rollout.sample for rollout in rollouts],
        "policy_version": [rollout.policy_version for rollout in rollouts],
        "prompt_index": [prompt.index for prompt in prompts],
        "prompt": read_by_prompt(prompts, lambda prompt: write_content(prompt.content)),
        "completion": [completion.text for completion in completions],
        "end": [completion.end for completion in completions],
        "length": [completion.length for completion in completions],
        "reward": [outcome.reward for outcome in outcomes],
        "success": [outcome.success for outcome in outcomes],
        "extracted": [outcome.answer for outcome in outcomes],
        "gold": read_by_prompt(prompts, lambda prompt: write_cell(prompt.gold)),
        "advantage": list(advantages_N),
        "faults": [list(outcome.faults) for outcome in outcomes],
        "steps": [ENCODER.encode(outcome.steps) if outcome.steps else "[]" for outcome in outcomes],
        "extras": [ENCODER.encode(dict(outcome.extras)) if outcome.extras else "{}" for outcome in outcomes],
    }
    for name in sorted({name for outcome in outcomes for name in outcome.parts}):
        columns[f"reward/{name}"] = [outcome.parts.get(name) for outcome in outcomes]
    taken = {*columns, *TOKENS, "row"}  # `cohort look` numbers the rows
    for name in dict.fromkeys(name for prompt in prompts for name in prompt.columns):
        shown = f"row/{name}" if name in taken or name.startswith("reward/") else name
        columns[shown] = read_row_column(prompts, name)
    return columns


def read_by_prompt(prompts: Sequence[Prompt], read: Callable[[Prompt], Any]) -> list[Any]:
    """A value per completion, worked out once for all completions of a prompt."""
    places = list(map(id, prompts))
    known = {place: read(prompt) for place, prompt in dict(zip(places, prompts, strict=True)).items()}
    return [known[place] for place in places]


def read_row_column(prompts: Sequence[Prompt], name: str) -> list[Any]:
    """A column of the data: numbers stay numbers where all of them are, everything else is text."""

    def read(prompt: Prompt) -> Any:
        return prompt.columns.get(name)

    values = read_by_prompt(prompts, read)
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool} or kinds == {float} or (kinds == {int} and all(v is None or abs(v) < 1 << 63 for v in values)):
        return values
    return read_by_prompt(prompts, lambda prompt: write_cell(read(prompt)))


def write_cell(value: Any) -> str | None:
    """A value of the data as text, cut where it is long."""
    if value is None:
        return None
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = str(value)
    if len(text) > MAX_CELL:
        text = f"{text[:MAX_CELL]} … ({len(text)} characters, cut here)"
    return text.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair can be in JSON and in no file


def write_content(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


# -- files -------------------------------------------------------------------------------------------------------------


def write_rollouts(file: Path, step: int, rollouts: Sequence[Rollout], advantages_N: Sequence[float]) -> None:
    """One parquet file with every completion of a step, in one move: a reader never sees half of it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"reward": pa.float64(), "success": pa.bool_(), "extracted": pa.string(), "gold": pa.string()}
    kinds |= {"faults": pa.list_(pa.string())}
    columns = {
        name: pa.array(values, kinds.get(name) or (pa.float64() if name.startswith("reward/") else None))
        for name, values in list_columns(step, rollouts, advantages_N).items()
    }
    columns["prompt_ids"] = make_list_column([rollout.prompt.token_ids for rollout in rollouts], "int32")
    columns["completion_ids"] = make_list_column([rollout.completion.token_ids for rollout in rollouts], "int32")
    columns["sampling_logprobs"] = make_list_column([rollout.completion.sampling_logprobs for rollout in rollouts], "float32")
    # Hardly two log-probs are alike: a dictionary of them makes the file larger and takes most of the writing.
    with_dictionary = [path for name in columns if name != "sampling_logprobs" for path in (name, f"{name}.list.element")]
    table = pa.table(columns)
    file.parent.mkdir(exist_ok=True)
    with defer_interrupts():
        pq.write_table(table, file.with_suffix(".tmp"), use_dictionary=with_dictionary, write_page_checksum=True)
        file.with_suffix(".tmp").replace(file)


def make_list_column(rows: Sequence[Sequence[float]], dtype: str) -> Any:
    """A parquet column with one list of numbers per row, made from one flat vector instead of an object per number."""
    import numpy as np
    import pyarrow as pa

    ends = np.cumsum([0, *map(len, rows)])
    values = np.fromiter(chain.from_iterable(rows), dtype, int(ends[-1]))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(values))


def list_kept_steps(folder: Path) -> list[int]:
    """The steps whose completions a run's rollouts/ holds, in order."""
    try:
        found = [FILE_NAME.fullmatch(name) for name in os.listdir(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(match.group(1)) for match in found if match)


def read_rollouts(file: Path, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The completions of a step without their tokens, or these columns of them. In files of older runs what was extracted is called `answer`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Not its path: a folder called rollouts/ would be taken for a partition of a data set. Nor a file of Python's: arrow's threads
        # would ask for the interpreter, and one that asks while a short command ends aborts it (exit code 134).
        with pa.OSFile(str(file)) as stream:
            there = pq.read_schema(stream).names
            names = [name for name in there if (name not in TOKENS if columns is None else name in columns)]
            stream.seek(0)
            rows: list[dict[str, Any]] = pq.read_table(stream, columns=names).to_pylist()
    except (OSError, pa.ArrowException) as problem:
        raise RunError(f"{file} cannot be read ({str(problem).splitlines()[0]}).") from problem
    if rows and columns is None and "extracted" not in rows[0]:
        rows = [{"extracted" if name == "answer" else name: value for name, value in row.items()} for row in rows]
    return rows


def find_parts(row: Mapping[str, Any]) -> dict[str, float | None]:
    """The parts of the reward by name."""
    return {name.removeprefix("reward/"): value for name, value in row.items() if name.startswith("reward/")}


def order_by_telling(rewards: Mapping[int, Sequence[float | None]]) -> list[int]:
    """Groups whose rewards differ, for they are the ones that teach, and behind them the others."""
    return sorted(rewards, key=lambda group: len({*rewards[group]} - {None}) < 2)
