"""rollouts/step-<N>.tokens.parquet: what an update did to single tokens, for a few groups of a step. No torch.

A row is one completion, as it stood in the last update of the step that it took part in (`update`, from 1, of `updates`). Its lists
are as long as each other, one value per token:

    pieces, token_ids     the token, as text and as the id that was sampled; pieces laid side by side are the text, special tokens included
    mask                  whether it was trained on; where it was not, the columns below are null
    advantage             what it was credited with
    sampling_logprob      of the engine that sampled it; null in a run on rows that somebody wrote
    old_logprob           of the policy before the step's first update; null where the region compares with nobody
    policy_logprob, entropy, ratio, clipped      in the update: clipped is -1 below, 1 above, 0 inside the region's limits
    ref_logprob           of the reference; null where there is none
    coefficient           how hard its log-prob is pushed up, -d loss / d log pi, before the aggregation weighs it
    weight                what the aggregation weighs it with

A whole list is null where nobody computed it: a completion that nothing pushes on is not read by the model (coefficient 0, log-probs
null), and one without a score, or in a group that is left out, takes part in no update (update null).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from cohort.base.interrupts import defer_interrupts
from cohort.errors import RunError
from cohort.observe.rollouts import order_by_telling

NUMBERS = (
    "advantage",
    "sampling_logprob",
    "old_logprob",
    "policy_logprob",
    "ref_logprob",
    "entropy",
    "ratio",
    "clipped",
    "coefficient",
    "weight",
)
"""The columns with a number, or null, for every token."""
REPEATED = ("advantage", "clipped", "weight")
"""Of these, those in which few values come again and again: a dictionary makes them small."""
MAX_TOKENS = 32_768
"""Tokens of a file at most: with ten numbers and a text for each it stays below 2 MB."""
MAX_GROUPS = 4
"""Groups at most, beside those that findings name."""
MAX_READ_BYTES, MAX_READ_VALUES = 1 << 24, 1 << 21
"""Of a file that is read: what no run has written is not opened."""
FILE_NAME = re.compile(r"step-(\d+)\.tokens\.parquet")


@dataclass(frozen=True)
class TokenRow:
    """One completion."""

    group: int
    sample: int
    row: int
    """Place in the step's rollouts."""
    update: int | None
    """Which of the step's updates the numbers are of, from 1; None: it took part in none that is known."""
    updates: int
    """How many the step has made."""
    pieces: Sequence[str]
    token_ids: Sequence[int]
    mask: Sequence[bool]
    numbers: Mapping[str, Sequence[float] | None]
    """By the names of NUMBERS: as long as the tokens, NaN where a token has none; None or absent: nobody computed it."""
    length: int
    """Tokens of the completion; more than are here where it was cut."""


def write_tokens(file: Path, step: int, rows: Sequence[TokenRow]) -> None:
    """One parquet file with these completions of a step, in one move."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

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
        "token_ids": make_lists(pa.array(np.fromiter(chain.from_iterable(row.token_ids for row in rows), np.int32, ends[-1]))),
        "mask": make_lists(pa.array(np.fromiter(chain.from_iterable(row.mask for row in rows), np.bool_, ends[-1]))),
        **{name: make_numbers(name) for name in NUMBERS},
    }
    # Hardly two log-probs are alike: a dictionary of them would only be made and thrown away.
    repeated = [name for name in columns if name not in NUMBERS or name in REPEATED]
    with_dictionary = [path for name in repeated for path in (name, f"{name}.list.element")]
    file.parent.mkdir(exist_ok=True)
    with defer_interrupts():
        pq.write_table(pa.table(columns), file.with_suffix(".tmp"), use_dictionary=with_dictionary, write_page_checksum=True)
        file.with_suffix(".tmp").replace(file)


PLACES = ("group", "sample", "row", "update", "updates", "length")


def read_tokens(file: Path, group: int | None = None) -> list[dict[str, Any]]:
    """The completions of the file, or of one of its groups, as dicts of the columns above."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pa.OSFile(str(file)) as stream:  # as in read_rollouts
            opened = pq.ParquetFile(stream)
            refuse_strange(file, opened.metadata)
            refuse_other_kinds(file, opened.schema_arrow)
            rows: list[dict[str, Any]] = opened.read().to_pylist()
    except (OSError, pa.ArrowException) as problem:
        raise RunError(f"{file.parent.name}/{file.name} cannot be read ({str(problem).splitlines()[0]}).") from problem
    if any(not is_whole(row) for row in rows):
        raise RunError(
            f"{file.parent.name}/{file.name} cannot be read (it has rows with gaps, or lists that are not as long as each other)."
        )
    return [row for row in rows if group is None or row["group"] == group]


def refuse_strange(file: Path, metadata: Any) -> None:
    """A file that no run has written may unfold to anything."""
    chunks = [metadata.row_group(place) for place in range(metadata.num_row_groups)]
    values = sum(chunk.column(place).num_values for chunk in chunks for place in range(chunk.num_columns))
    size = max(file.stat().st_size, sum(chunk.total_byte_size for chunk in chunks))
    if size > MAX_READ_BYTES or values > MAX_READ_VALUES:
        raise RunError(f"{file.parent.name}/{file.name} cannot be read (it is larger than anything that a run writes there).")


def refuse_other_kinds(file: Path, schema: Any) -> None:
    """Whoever reads a row counts on the kinds that write_tokens gives its columns."""
    whole, lists = dict.fromkeys(("step", *PLACES), "int32"), dict.fromkeys(NUMBERS, "float")
    lists |= {"clipped": "int8", "pieces": "string", "token_ids": "int32", "mask": "bool"}
    for name, wanted in (whole | lists).items():
        if name not in schema.names:
            raise RunError(f"{file.parent.name}/{file.name} cannot be read (it has no column {name!r}).")
        kind = schema.field(name).type
        if str(getattr(kind, "value_type", None) if name in lists else kind) != wanted:
            raise RunError(
                f"{file.parent.name}/{file.name} cannot be read (its column {name!r} is of a kind that no run writes)."
            )


def is_whole(row: Mapping[str, Any]) -> bool:
    """Whether a row names a completion, and its lists are as long as each other."""
    always = [row[name] for name in ("pieces", "token_ids", "mask")]
    if None in always or any(None in one for one in always) or any(row[name] is None for name in ("group", "sample", "row")):
        return False
    return len({len(one) for one in (*always, *(row[name] for name in NUMBERS)) if one is not None}) == 1


def list_recorded_steps(folder: Path) -> list[int]:
    """The steps of which a run's rollouts/ holds single tokens, in order."""
    found = [FILE_NAME.fullmatch(file.name) for file in folder.glob("step-*.tokens.parquet")]
    return sorted(int(match.group(1)) for match in found if match)


def choose_groups(rewards: Mapping[int, Sequence[float | None]], named: Sequence[int], more: bool) -> list[int]:
    """Groups to write down, the weightiest first: those that findings name; with `more` also telling ones, and then any other."""
    telling = order_by_telling(rewards)[:MAX_GROUPS] if more else []
    return list(dict.fromkeys([*named, *telling]))


def choose_rows(
    groups: Sequence[int], members: Mapping[int, Sequence[int]], lengths_N: Sequence[int], credit_N: Sequence[float]
) -> dict[int, int]:
    """Row -> how many of its tokens are written down: whole groups in this order, as far as MAX_TOKENS goes.

    Of the first group, where it does not fit, as many completions as do: those with the largest and the smallest advantage by turns;
    and where none does, the beginning of one.
    """
    chosen: dict[int, int] = {}
    room = MAX_TOKENS
    for place, group in enumerate(groups):
        rows, whole = members[group], sum(lengths_N[row] for row in members[group]) <= room
        for row in rows if whole else take_turns(sorted(rows, key=lambda row: -credit_N[row])) if place == 0 else ():
            if lengths_N[row] <= room:
                chosen[row] = lengths_N[row]
                room -= lengths_N[row]
    if groups and not chosen:
        chosen = {max(members[groups[0]], key=lambda row: credit_N[row]): MAX_TOKENS}
    return dict(sorted(chosen.items()))


def take_turns(ordered: Sequence[int]) -> list[int]:
    """The first, the last, the second, the last but one, and so on."""
    return [row for pair in zip(ordered, reversed(ordered), strict=True) for row in pair][: len(ordered)]
