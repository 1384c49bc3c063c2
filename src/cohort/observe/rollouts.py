"""The files of rollouts/: completions, an index over all steps, and single tokens of a few groups. No torch.

step-<N>.parquet         every completion of a step
index.bin                one short record for every completion of all steps, so that a search reads no parquet
step-<N>.tokens.parquet  what the updates did to single tokens, for a few groups of a step

A row of the first is one completion: prompt, text, end, reward parts, verdict, extracted answer, `reference_answer`, advantage, and
the columns of its data row under their own names (`row/NAME` where the name is taken). Monitors get the same rows; the files also hold
token ids and log-probs.

    rows = read_index(folder.index_file)                   # a numpy array of ROW, mapped from the file; nothing is read yet
    rows[(rows["step"] == 12) & (rows["flags"] & WRONG_REWARDED != 0)]

Index records are little-endian and of fixed width, steps ascend, and each step is written in one call. After a crash the file ends with
at most one partial record, which readers skip and the next step overwrites.

A row of the third is one completion as of the last update of the step that it took part in (`update`, from 1, of `updates`). Its lists
have equal length, one value per token:

    pieces, token_ids     the token as text and its sampled id; the pieces joined are the text, special tokens included
    mask                  whether the token was trained on; where not, the columns below are null
    advantage             the advantage credited to the token
    sampling_logprob      log-prob of the engine that sampled it; null if the completions were given, not sampled
    old_logprob           log-prob of the policy before the step's first update; null if the algorithm uses no ratio
    policy_logprob, entropy, ratio, clipped      in the update; clipped: -1 below the region's limits, 1 above, 0 inside
    ref_logprob           log-prob of the reference; null without one
    coefficient           -d loss / d log pi before aggregation: how hard the update pushes the log-prob up
    weight                the aggregation's weight of the token

A whole list is null if it was not computed: the model does not run completions without gradient (coefficient 0, log-probs null), and an
unscored completion, or one of a dropped group, takes part in no update (update null).
"""

from __future__ import annotations

import json
import mmap
import os
import re
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cohort.base.files import name_file, replace_file
from cohort.errors import RunError
from cohort.types import Episode, Prompt, Rollout

MAX_CELL = 2000
"""Characters kept of a data column; longer tests and documents stay in row `prompt_index` of the source."""
TOKENS = ("prompt_ids", "completion_ids", "completion_mask", "sampling_logprobs")
"""Columns of the files that monitors do not get."""
ENCODER = json.JSONEncoder(default=str)
SEAL = b"\xff\xfecohort crc32\xfe\xff"
"""Precedes the checksum of a parquet file. No UTF-8 text contains it, so no completion does."""
ROLLOUTS_NAME, TOKENS_NAME = re.compile(r"step-(\d+)\.parquet"), re.compile(r"step-(\d+)\.tokens\.parquet")


def list_rows(step: int, rollouts: Sequence[Rollout], advantages_N: Sequence[float]) -> list[dict[str, Any]]:
    """One plain row per completion, as read_rollouts returns them."""
    columns = list_columns(step, rollouts, advantages_N)
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def list_columns(step: int, rollouts: Sequence[Rollout], advantages_N: Sequence[float]) -> dict[str, list[Any]]:
    """The columns of a step's file, except tokens."""
    outcomes, prompts = [rollout.outcome for rollout in rollouts], [rollout.prompt for rollout in rollouts]
    completions = [rollout.completion for rollout in rollouts]
    columns: dict[str, list[Any]] = {
        "step": [step] * len(rollouts),
        "group": [rollout.group for rollout in rollouts],
        "sample": [rollout.sample for rollout in rollouts],
        "policy_version": [rollout.policy_version for rollout in rollouts],
        "prompt_index": [prompt.index for prompt in prompts],
        "prompt": read_by_prompt(
            prompts,
            lambda prompt: (
                prompt.content if isinstance(prompt.content, str) else json.dumps(prompt.content, ensure_ascii=False)
            ),
        ),
        "completion": [completion.text for completion in completions],
        "end": [completion.end for completion in completions],
        "length": [completion.length for completion in completions],
        "reward": [outcome.reward for outcome in outcomes],
        "success": [outcome.success for outcome in outcomes],
        "extracted": [outcome.answer for outcome in outcomes],
        "reference_answer": read_by_prompt(prompts, lambda prompt: write_cell(prompt.reference_answer)),
        "advantage": list(advantages_N),
        "faults": [list(outcome.faults) for outcome in outcomes],
        "steps": [ENCODER.encode(outcome.steps) if outcome.steps else "[]" for outcome in outcomes],
        "extras": [ENCODER.encode(dict(outcome.extras)) if outcome.extras else "{}" for outcome in outcomes],
    }
    if any(completion.episode for completion in completions):
        columns["episode"] = [encode_episode(one.episode) if one.episode else None for one in completions]
    for name in sorted({name for outcome in outcomes for name in outcome.parts}):
        columns[f"reward/{name}"] = [outcome.parts.get(name) for outcome in outcomes]
    taken = {*columns, *TOKENS, "row"}  # `cohort look` numbers the rows
    for name in dict.fromkeys(name for prompt in prompts for name in prompt.columns):
        shown = f"row/{name}" if name in taken or name.startswith("reward/") else name
        columns[shown] = read_row_column(prompts, name)
    return columns


def encode_episode(episode: Episode) -> str:
    """The episode as JSON, without seconds: equal runs write equal files."""
    turns = [{name: value for name, value in asdict(turn).items() if name != "seconds"} for turn in episode.turns]
    return ENCODER.encode({**asdict(episode), "turns": turns})


def write_transcript(row: Mapping[str, Any]) -> str:
    """What the policy wrote; of an episode also what it read, each reply marked with the name of the environment."""
    try:
        episode = json.loads(row["episode"])
        told = [(one["role"] == "assistant", str(one["content"]), one.get("tool_calls") or ()) for one in episode["messages"]]
        calls = ["".join(f"\n{ENCODER.encode(call['function'])}" for call in made) for _, _, made in told]
        return "\n".join(
            f"{text}{asked}".strip("\n") if wrote else f"[{episode['environment']}] {text.strip()}"
            for (wrote, text, _), asked in zip(told, calls, strict=True)
        )
    except (KeyError, TypeError, ValueError, AttributeError):  # no episode, or a file of a stranger
        return str(row.get("completion") or "")


def read_by_prompt(prompts: Sequence[Prompt], read: Callable[[Prompt], Any]) -> list[Any]:
    """One value per completion, computed once per prompt."""
    places = list(map(id, prompts))
    known = {place: read(prompt) for place, prompt in dict(zip(places, prompts, strict=True)).items()}
    return [known[place] for place in places]


def read_row_column(prompts: Sequence[Prompt], name: str) -> list[Any]:
    """A column of the data: numbers if all values are numbers of one type, otherwise text."""

    def read(prompt: Prompt) -> Any:
        return prompt.columns.get(name)

    values = read_by_prompt(prompts, read)
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool} or kinds == {float} or (kinds == {int} and all(v is None or abs(v) < 1 << 63 for v in values)):
        return values
    return read_by_prompt(prompts, lambda prompt: write_cell(read(prompt)))


def write_cell(value: Any) -> str | None:
    """A value of the data as text, truncated to MAX_CELL characters."""
    if value is None:
        return None
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = str(value)
    if len(text) > MAX_CELL:
        text = f"{text[:MAX_CELL]} … ({len(text)} characters, cut here)"
    return text.encode("utf-8", "replace").decode("utf-8")  # JSON can hold a lone surrogate, a UTF-8 file cannot


# -- completions -------------------------------------------------------------------------------------------------------


def write_rollouts(file: Path, step: int, rollouts: Sequence[Rollout], advantages_N: Sequence[float]) -> None:
    """Write every completion of a step as one parquet file, atomically."""
    import pyarrow as pa

    kinds = {"reward": pa.float64(), "success": pa.bool_(), "extracted": pa.string(), "reference_answer": pa.string()}
    kinds |= {"faults": pa.list_(pa.string())}
    columns = {
        name: pa.array(values, kinds.get(name) or (pa.float64() if name.startswith("reward/") else None))
        for name, values in list_columns(step, rollouts, advantages_N).items()
    }
    columns["prompt_ids"] = make_list_column([rollout.prompt.token_ids for rollout in rollouts], "int32")
    columns["completion_ids"] = make_list_column([rollout.completion.token_ids for rollout in rollouts], "int32")
    if "episode" in columns:  # which ids the policy wrote; the others are replies
        columns["completion_mask"] = make_list_column([rollout.completion.mask for rollout in rollouts], "bool")
    columns["sampling_logprobs"] = make_list_column([rollout.completion.sampling_logprobs for rollout in rollouts], "float32")
    write_table(file, columns, [name for name in columns if name != "sampling_logprobs"])


def write_table(file: Path, columns: Mapping[str, Any], repetitive: Sequence[str]) -> None:
    """Write a parquet file, atomically, with dictionaries for the repetitive columns.

    Log-probs are nearly all distinct: a dictionary of them makes the file larger and takes most of the writing time.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with_dictionary = [path for name in repetitive for path in (name, f"{name}.list.element")]
    table = pa.table(dict(columns))
    with replace_file(file) as temporary:
        pq.write_table(table, temporary, use_dictionary=with_dictionary)
        data = temporary.read_bytes()
        end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")  # readers skip what precedes the metadata
        temporary.write_bytes(data[:end] + SEAL + zlib.crc32(data).to_bytes(4, "little") + data[end:])


def verify_file(file: Path) -> None:
    """Raise OSError if the file does not match its checksum. Arrow's own cover the pages, but damaged metadata can abort the process."""
    if not file.stat().st_size:
        return
    with open(file, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data, memoryview(data) as view:
        place = data.rfind(SEAL)
        end = place + len(SEAL)
        found = zlib.crc32(view[end + 4 :], zlib.crc32(view[:place]))
        if place >= 0 and found != int.from_bytes(view[end : end + 4], "little"):
            raise OSError("it does not match its checksum; the file is damaged")


def make_list_column(rows: Sequence[Sequence[float]], dtype: str) -> Any:
    """A parquet column with a list of numbers per row, built from one flat vector instead of one object per number."""
    import pyarrow as pa

    ends = np.cumsum([0, *map(len, rows)])
    values = np.fromiter(chain.from_iterable(rows), dtype, int(ends[-1]))
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(values))


def list_kept_steps(folder: Path, name: re.Pattern[str] = ROLLOUTS_NAME) -> list[int]:
    """The steps whose completions are in a run's rollouts/, in order."""
    try:
        found = [name.fullmatch(file) for file in os.listdir(folder)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(match.group(1)) for match in found if match)


def read_rollouts(file: Path, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The completions of a step: all columns except tokens, or the named ones."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        verify_file(file)
        # A path would make arrow take the folder rollouts/ for a partition of a dataset. With a Python file arrow's threads need
        # the interpreter, and one that asks for it while a short command exits aborts the process (exit code 134).
        with pa.OSFile(str(file)) as stream:
            present = pq.read_schema(stream).names
            names = [name for name in present if (name not in TOKENS if columns is None else name in columns)]
            stream.seek(0)
            rows: list[dict[str, Any]] = pq.read_table(stream, columns=names).to_pylist()
    except (OSError, pa.ArrowException) as problem:
        raise RunError(f"{file} cannot be read ({str(problem).splitlines()[0]}).") from problem
    return rows


def is_intact(file: Path, step: int) -> bool:
    """Whether a parquet file matches its checksum and all rows belong to the step."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        verify_file(file)
        with pa.OSFile(str(file)) as stream:  # as in read_rollouts
            table = pq.read_table(stream)
    except (OSError, ValueError, pa.ArrowException):
        return False
    return "step" in table.column_names and table["step"].unique().to_pylist() in ([step], [])


def find_parts(row: Mapping[str, Any]) -> dict[str, float | None]:
    """The parts of the reward by name."""
    return {name.removeprefix("reward/"): value for name, value in row.items() if name.startswith("reward/")}


def order_useful_first(rewards: Mapping[int, Sequence[float | None]]) -> list[int]:
    """Groups with different rewards first, since only they teach; then the others."""
    return sorted(rewards, key=lambda group: len({*rewards[group]} - {None}) < 2)


# -- index -------------------------------------------------------------------------------------------------------------

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
"""row: place in the step's parquet file; reward: NaN if unscored; end: 0 stop, 1 length; success: -1 without a verdict."""
DUPLICATE, WRONG_REWARDED, EVIDENCE = 1, 2, 4
"""flags: same tokens as an earlier completion of the group; judged wrong but rewarded; evidence of a finding that held at the step."""

Rows = npt.NDArray[np.void]


def fill_rows(columns: Mapping[str, Any], token_ids: Sequence[tuple[int, ...]], evidence_rows: Collection[int] = ()) -> Rows:
    """Index records of one step from these columns, with row numbers and flags."""
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
    """Append the index records of a step, replacing records of this step and later ones.

    evidence_rows: places of the completions that findings name as evidence.
    """
    truncate_index(file, step - 1)
    outcomes = [rollout.outcome for rollout in rollouts]
    columns = {
        "step": step,
        "group": [rollout.group for rollout in rollouts],
        "sample": [rollout.sample for rollout in rollouts],
        "prompt_index": [rollout.prompt.index for rollout in rollouts],
        "reward": [np.nan if outcome.reward is None else outcome.reward for outcome in outcomes],
        "advantage": advantages_N,
        "length": [rollout.completion.length for rollout in rollouts],
        "end": [rollout.completion.end == "length" for rollout in rollouts],
        "success": [-1 if outcome.success is None else outcome.success for outcome in outcomes],
    }
    rows = fill_rows(columns, [rollout.completion.token_ids for rollout in rollouts], evidence_rows)
    file.parent.mkdir(exist_ok=True)
    with name_file(file), file.open("ab") as stream:
        stream.write(rows.tobytes())


def read_index(file: Path) -> Rows:
    """All complete records, memory-mapped; an empty array if the file is missing."""
    try:
        count = file.stat().st_size // ROW.itemsize
        return np.memmap(file, ROW, "r", shape=(count,)) if count else np.zeros(0, ROW)
    except (OSError, ValueError):  # deleted or truncated between the two calls
        return np.zeros(0, ROW)


def truncate_index(file: Path, step: int) -> None:
    """Remove the records of later steps and a partial record, so that steps that run again are not recorded twice."""
    rows = read_index(file)
    if file.is_file():
        late = len(rows) and int(rows["step"][-1]) > step  # steps ascend
        size = ROW.itemsize * (int(np.argmax(rows["step"] > step)) if late else len(rows))
        del rows  # unmap what is about to be cut off
        if size != file.stat().st_size:
            os.truncate(file, size)


# -- tokens ------------------------------------------------------------------------------------------------------------

NUMBERS = (
    "advantage", "sampling_logprob", "old_logprob", "policy_logprob", "ref_logprob", "entropy", "ratio", "clipped", "coefficient",
    "weight",
)  # fmt: skip
"""The columns with a number or null for every token."""
REPEATED = ("advantage", "clipped", "weight")
"""Those of NUMBERS with few distinct values, which a dictionary compresses well."""
PLACES = ("group", "sample", "row", "update", "updates", "length")
LISTS = {"clipped": "list int8", "pieces": "list string", "token_ids": "list int32", "mask": "list bool"}
MAX_TOKENS = 32_768
"""Tokens per file: with ten numbers and a text each it stays below 2 MB."""
MAX_GROUPS = 4
"""Groups per file, besides groups named by findings."""
MAX_READ_BYTES, MAX_READ_VALUES = 1 << 24, 1 << 21
"""Larger files are refused: no run writes them."""


@dataclass(frozen=True)
class TokenRow:
    """The tokens of one completion."""

    group: int
    sample: int
    row: int
    """Place in the step's rollouts."""
    update: int | None
    """The step's update that the numbers come from, from 1; None: no known update."""
    updates: int
    """Updates of the step."""
    pieces: Sequence[str]
    token_ids: Sequence[int]
    mask: Sequence[bool]
    numbers: Mapping[str, Sequence[float] | None]
    """By the names of NUMBERS: one value per token, NaN where a token has none; None or absent: not computed."""
    length: int
    """Tokens of the whole completion; the lists are shorter if it was truncated here."""


def write_tokens(file: Path, step: int, rows: Sequence[TokenRow]) -> None:
    """Write the tokens of these completions of a step as one parquet file, atomically."""
    import pyarrow as pa

    ends = np.cumsum([0, *(len(row.token_ids) for row in rows)], dtype=np.int32)

    def make_lists(values: Any) -> Any:
        return pa.ListArray.from_arrays(pa.array(ends), values)

    def make_numbers(name: str) -> Any:
        columns = [row.numbers.get(name) for row in rows]
        sizes = [0 if column is None else len(column) for column in columns]
        known = [np.asarray(column, np.float32) for column in columns if column is not None]
        flat = np.concatenate([*known, np.zeros(0, np.float32)])
        missing = np.isnan(flat)
        kind = pa.int8() if name == "clipped" else pa.float32()
        values = pa.array(np.where(missing, 0, flat).astype(kind.to_pandas_dtype()), mask=missing)
        starts = np.cumsum([0, *sizes], dtype=np.int32)
        absent = np.array([column is None for column in columns] + [False])
        return pa.ListArray.from_arrays(pa.array(starts, mask=absent), values)

    columns = {
        "step": pa.array([step] * len(rows), pa.int32()),
        **{name: pa.array([getattr(row, name) for row in rows], pa.int32()) for name in PLACES},
        "pieces": make_lists(pa.array(list(chain.from_iterable(row.pieces for row in rows)), pa.string())),
        "token_ids": make_list_column([row.token_ids for row in rows], "int32"),
        "mask": make_list_column([row.mask for row in rows], "bool"),
        **{name: make_numbers(name) for name in NUMBERS},
    }
    write_table(file, columns, [name for name in columns if name not in NUMBERS or name in REPEATED])


def read_tokens(file: Path, group: int | None = None) -> list[dict[str, Any]]:
    """The completions of the file, or of one of its groups, as dicts of the columns above."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = f"{file.parent.name}/{file.name}"
    try:
        verify_file(file)
        with pa.OSFile(str(file)) as stream:  # as in read_rollouts
            opened = pq.ParquetFile(stream)
            if reason := find_foreign_form(file, opened.metadata, opened.schema_arrow):
                raise RunError(f"{name} cannot be read ({reason}).")
            rows: list[dict[str, Any]] = opened.read().to_pylist()
    except (OSError, pa.ArrowException) as problem:
        raise RunError(f"{name} cannot be read ({str(problem).splitlines()[0]}).") from problem
    if not all(map(is_complete, rows)):
        raise RunError(f"{name} cannot be read (it has rows with gaps, or lists of different lengths).")
    return [row for row in rows if group is None or row["group"] == group]


def find_foreign_form(file: Path, metadata: Any, schema: Any) -> str:
    """Why no run can have written this file: its size, also unpacked, or its columns; "" if it looks like ours."""
    chunks = [metadata.row_group(place) for place in range(metadata.num_row_groups)]
    values = sum(chunk.column(place).num_values for chunk in chunks for place in range(chunk.num_columns))
    size = max(file.stat().st_size, sum(chunk.total_byte_size for chunk in chunks))
    if size > MAX_READ_BYTES or values > MAX_READ_VALUES:
        return "it is larger than any file that a run writes there"
    wanted = dict.fromkeys(("step", *PLACES), "int32") | dict.fromkeys(NUMBERS, "list float") | LISTS
    found = {
        field.name: f"list {field.type.value_type}" if hasattr(field.type, "value_type") else str(field.type)
        for field in schema
    }
    return "" if found == wanted else "its columns are not those that a run writes"


def is_complete(row: Mapping[str, Any]) -> bool:
    """Whether a row names a completion and its lists have equal length."""
    always = [row[name] for name in ("pieces", "token_ids", "mask")]
    if None in always or any(None in one for one in always) or any(row[name] is None for name in ("group", "sample", "row")):
        return False
    return len({len(one) for one in (*always, *(row[name] for name in NUMBERS)) if one is not None}) == 1


def list_token_steps(folder: Path) -> list[int]:
    """The steps with a file of tokens in a run's rollouts/, in order."""
    return list_kept_steps(folder, TOKENS_NAME)


def choose_groups(rewards: Mapping[int, Sequence[float | None]], named: Sequence[int], more: bool) -> list[int]:
    """Groups to record, the most important first: groups named by findings; with `more` also useful groups, then any others."""
    return list(dict.fromkeys([*named, *(order_useful_first(rewards)[:MAX_GROUPS] if more else [])]))


def choose_rows(
    groups: Sequence[int], members: Mapping[int, Sequence[int]], lengths_N: Sequence[int], advantages_N: Sequence[float]
) -> dict[int, int]:
    """Row -> how many of its tokens to record: whole groups in this order, up to MAX_TOKENS.

    If the first group does not fit, as many of its completions as do, the largest and smallest advantages alternating; if none fits, the
    beginning of one.
    """
    chosen: dict[int, int] = {}
    room = MAX_TOKENS
    for place, group in enumerate(groups):
        rows, whole = members[group], sum(lengths_N[row] for row in members[group]) <= room
        by_advantage = sorted(rows, key=lambda row: -advantages_N[row])
        for row in rows if whole else alternate_ends(by_advantage) if place == 0 else ():
            if lengths_N[row] <= room:
                chosen[row] = lengths_N[row]
                room -= lengths_N[row]
    if groups and not chosen:
        chosen = {max(members[groups[0]], key=lambda row: advantages_N[row]): MAX_TOKENS}
    return dict(sorted(chosen.items()))


def alternate_ends(ordered: Sequence[int]) -> list[int]:
    """The first, the last, the second, the last but one, and so on."""
    return [row for pair in zip(ordered, reversed(ordered), strict=True) for row in pair][: len(ordered)]
