"""The layout of a micro-batch's rows in one flat sequence of tokens without padding, and row selection with a deterministic
backward.

A row is a prompt and one completion. Without sharing, rows follow each other. With sharing, a prompt appears once for all its
rows: first come all prompts, then all completions. Prompts and completions are then one slice each, as attention in two calls
needs (ops/packed_attention.py).

    without    P a a a  P b b  Q c c        positions  0 1 2 3  0 1 2  0 1 2
    shared     P Q  a a a b b c c           positions  0 0  1 2 3 1 2 1 2

Positions continue from the prompt's length in each completion, so a token has the position of its own sequence. Outside
attention every token is computed by itself, so only attention needs to know where rows begin.

PyTorch's backward of `index_select` uses atomics on a GPU, so the gradient of a row taken twice would differ in its last bits
between runs. The indices are known when a micro-batch is packed, so the reverse gather is prepared there, on the host, and sums
always run in the same order.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Indices = NDArray[np.int64]
Record = TypeVar("Record", bound=Any)


@dataclass(frozen=True, eq=False)
class Selection:
    """A selection of N rows from a tensor of S sources."""

    index_N: Tensor
    once_S: Tensor
    """For each source an output it was taken for; arbitrary if there is none."""
    unused_S: Tensor | None
    """None: every source is used."""
    repeated_K: Tensor | None
    """Sources taken more than once, or None."""
    places_KR: Tensor | None
    """All outputs of these sources."""
    absent_KR: Tensor | None
    """True where a source of K has fewer than R outputs; None: all have R."""

    @classmethod
    def from_index(cls, index_N: Indices, num_sources: int, ignored_N: NDArray[np.bool_] | None = None) -> Selection:
        """Prepare a selection. `ignored_N`: outputs without a gradient, such as padding."""
        places = np.arange(len(index_N)) if ignored_N is None else np.flatnonzero(~ignored_N)
        sources = index_N[places]
        counts_S = np.bincount(sources, minlength=num_sources)
        once_S = np.zeros(num_sources, dtype=np.int64)
        once_S[sources] = places
        repeated_K = np.flatnonzero(counts_S > 1)
        tables: list[Tensor | None] = [None, None, None]
        if len(repeated_K):
            several = counts_S[sources] > 1
            order = np.argsort(sources[several], kind="stable")
            counts_K = counts_S[repeated_K]
            present_KR = np.arange(counts_K.max()) < counts_K[:, None]
            places_KR = np.zeros(present_KR.shape, dtype=np.int64)
            places_KR[present_KR] = places[several][order]
            absent_KR = None if present_KR.all() else torch.from_numpy(~present_KR)
            tables = [torch.from_numpy(repeated_K), torch.from_numpy(places_KR), absent_KR]
        unused_S = None if counts_S.all() else torch.from_numpy(counts_S == 0)
        return cls(torch.from_numpy(index_N), torch.from_numpy(once_S), unused_S, *tables)

    def to(self, device: torch.device | str) -> Selection:
        return move_record(self, device)


def move_record(record: Record, device: torch.device | str) -> Record:
    """Move a dataclass to a device, with all fields that can be moved."""
    values: dict[str, Any] = {field.name: getattr(record, field.name) for field in fields(record)}
    return replace(record, **{name: move(value, device) for name, value in values.items() if hasattr(value, "to")})


def move(value: Any, device: torch.device | str) -> Any:
    """Move a tensor or record. From the host to a GPU without waiting for the queued work, as a copy of pageable memory would."""
    if isinstance(value, Tensor) and value.device.type == "cpu" and torch.device(device).type == "cuda":
        return value.pin_memory().to(device, non_blocking=True)
    return value.to(device)


def take(source: Tensor, selection: Selection) -> Tensor:
    """Return source[index] along the first dimension."""
    taken: Tensor = _Take.apply(source, selection)
    return taken


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: Tensor, selection: Selection) -> Tensor:
        ctx.selection = selection
        return source.index_select(0, selection.index_N)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return give_back(grad_outputs[0], ctx.selection), None


def give_back(gradient: Tensor, selection: Selection) -> Tensor:
    """Return the gradient of the source from that of the selection; repeated sources get the sum."""
    back = gradient.index_select(0, selection.once_S)
    if selection.unused_S is not None:
        back.masked_fill_(_broadcast_mask(selection.unused_S, back), 0.0)
    if selection.repeated_K is not None and selection.places_KR is not None:
        several = gradient.index_select(0, selection.places_KR.flatten())
        several = several.view(*selection.places_KR.shape, *gradient.shape[1:])
        if selection.absent_KR is not None:
            several.masked_fill_(_broadcast_mask(selection.absent_KR, several), 0.0)
        back.index_copy_(0, selection.repeated_K, several.sum(1))
    return back


def _broadcast_mask(mask: Tensor, like: Tensor) -> Tensor:
    """Reshape the mask for broadcasting over the last dimensions of `like`."""
    return mask.view(*mask.shape, *[1] * (like.dim() - mask.dim()))


def list_ranges(starts_B: Indices, lengths_B: Indices) -> Indices:
    """Concatenate start, start + 1, ... for each row."""
    firsts_B = np.cumsum(lengths_B) - lengths_B
    return np.arange(lengths_B.sum()) + np.repeat(starts_B - firsts_B, lengths_B)


# ---------------------------------------------------------------------------------------------------------------------
# Layout
# ---------------------------------------------------------------------------------------------------------------------

PADDING_SHARE = 0.25
PADDING_FREE = 1024
"""Largest share of padding in a block of rows before it is split. This many padded tokens are always allowed, because blocks
cost calls."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Positions of each row's tokens: first those of a shared prompt, then its own."""

    shared_start_B: Indices
    shared_length_B: Indices
    """0 if nothing is shared; the prompt is then among the row's own tokens."""
    own_start_B: Indices
    own_length_B: Indices
    completion_start_B: Indices
    before_completion_B: Indices
    """The prompt's last token, whose state predicts the first token of the completion."""

    @property
    def length_B(self) -> Indices:
        return self.shared_length_B + self.own_length_B


@dataclass(frozen=True, eq=False)
class SharedPrompts:
    num_tokens: int
    """The prompts are the first tokens of the layout, the completions all others."""
    longest: int
    completion_starts: Tensor
    """int32 [rows + 1]: where each row's completion begins, counted from the first completion."""
    longest_completion: int
    copy_starts: Tensor
    """int32 [rows + 1]: where each row's copy of its prompt begins in `copies`."""
    copies: Selection
    """Selects the tokens of each row's prompt, row after row."""

    def to(self, device: torch.device | str) -> SharedPrompts:
        return move_record(self, device)


@dataclass(frozen=True, eq=False)
class Padding:
    """The rows side by side, right-padded, in blocks of similar lengths."""

    shapes: tuple[tuple[int, int], ...]
    """(rows, width) of each block."""
    rows: Selection | None
    """Selects the T flat tokens for all positions of all blocks; None: the flat tokens already are the only block."""
    flat: Selection | None
    """The reverse: selects positions for the T tokens. A shared prompt is read from one of its rows."""


@dataclass(frozen=True, eq=False)
class Clusters:
    """Rows grouped by shared prompt. A row without sharing is its own cluster, with an empty prompt."""

    prompt_start_C: Indices
    prompt_length_C: Indices
    first_row_C: Indices
    """The last entry is the number of rows."""


@dataclass(frozen=True, eq=False)
class Layout:
    token_ids_T: Tensor
    positions_T: Tensor
    segment_starts: Tensor
    """int32 [segments + 1]. A segment is a row; with sharing a prompt or a completion."""
    longest_segment: int
    rows: Rows
    """On the host."""
    shared: SharedPrompts | None

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[int] | Tensor]) -> Layout:
        """Lay out whole rows one after another, without sharing."""
        return lay_out([((), row.tolist() if isinstance(row, Tensor) else row) for row in rows])

    @property
    def num_tokens(self) -> int:
        return self.token_ids_T.shape[0]

    @property
    def num_rows(self) -> int:
        return len(self.rows.own_start_B)

    @cached_property
    def longest_row(self) -> int:
        return int(self.rows.length_B.max())

    @cached_property
    def equal_rows(self) -> bool:
        """Whether the flat tokens form a rectangle of rows."""
        return self.shared is None and bool((self.rows.length_B == self.longest_row).all())

    @cached_property
    def padding(self) -> Padding:
        """Computed on first use, because varlen kernels do not need it."""
        return make_padding(self.rows, self.num_tokens, self.equal_rows, self.token_ids_T.device)

    @cached_property
    def clusters(self) -> Clusters:
        start_B, length_B = self.rows.shared_start_B, self.rows.shared_length_B
        alone_B = np.ones(self.num_rows, dtype=np.bool_)
        alone_B[1:] = (length_B[1:] == 0) | (start_B[1:] != start_B[:-1])
        first_C = np.flatnonzero(alone_B)
        return Clusters(start_B[first_C], length_B[first_C], np.append(first_C, self.num_rows))

    def to(self, device: torch.device | str) -> Layout:
        """Copy to another device. On the same device, return the layout itself with its cached padding."""
        return self if self.token_ids_T.device == torch.device(device) else move_record(self, device)


def lay_out(sequences: Sequence[tuple[Sequence[int], Sequence[int]]], keys: Sequence[Hashable] | None = None) -> Layout:
    """Lay out rows of (prompt ids, completion ids). Consecutive rows with equal keys have the same prompt and share it."""
    prompt_length_B = np.fromiter((len(prompt) for prompt, _ in sequences), np.int64, len(sequences))
    completion_length_B = np.fromiter((len(completion) for _, completion in sequences), np.int64, len(sequences))
    if keys is not None:
        first_B = np.fromiter((row == 0 or keys[row] != keys[row - 1] for row in range(len(keys))), np.bool_, len(keys))
        if not first_B.all():
            return _lay_out_shared(sequences, first_B, prompt_length_B, completion_length_B)
    length_B = prompt_length_B + completion_length_B
    starts = _find_starts(length_B)
    start_B = starts[:-1]
    completion_start_B = start_B + prompt_length_B
    nothing_B = np.zeros_like(length_B)
    rows = Rows(nothing_B, nothing_B, start_B, length_B, completion_start_B, completion_start_B - 1)
    token_ids_T = _join_ids(list(chain.from_iterable(sequences)), int(starts[-1]))
    positions_T = list_ranges(nothing_B, length_B)
    return _make_layout(token_ids_T, positions_T, length_B, rows, None)


def _lay_out_shared(
    sequences: Sequence[tuple[Sequence[int], Sequence[int]]],
    first_B: np.ndarray,
    prompt_length_B: Indices,
    completion_length_B: Indices,
) -> Layout:
    prompt_B = np.cumsum(first_B) - 1
    prompt_length_P = prompt_length_B[first_B]
    prompt_starts = _find_starts(prompt_length_P)
    num_prompt_tokens = int(prompt_starts[-1])
    completion_starts = _find_starts(completion_length_B)
    own_start_B = num_prompt_tokens + completion_starts[:-1]
    rows = Rows(
        shared_start_B=prompt_starts[:-1][prompt_B],
        shared_length_B=prompt_length_B,
        own_start_B=own_start_B,
        own_length_B=completion_length_B,
        completion_start_B=own_start_B,
        before_completion_B=prompt_starts[1:][prompt_B] - 1,
    )
    prompts = [prompt for (prompt, _), first in zip(sequences, first_B, strict=True) if first]
    completions = [completion for _, completion in sequences]
    token_ids_T = _join_ids([*prompts, *completions], num_prompt_tokens + int(completion_starts[-1]))
    positions_T = np.concatenate(
        [list_ranges(np.zeros_like(prompt_length_P), prompt_length_P), list_ranges(prompt_length_B, completion_length_B)]
    )
    shared = SharedPrompts(
        num_tokens=num_prompt_tokens,
        longest=int(prompt_length_P.max()),
        completion_starts=_to_int32(completion_starts),
        longest_completion=int(completion_length_B.max()),
        copy_starts=_to_int32(_find_starts(prompt_length_B)),
        copies=Selection.from_index(list_ranges(rows.shared_start_B, prompt_length_B), num_prompt_tokens),
    )
    return _make_layout(token_ids_T, positions_T, np.concatenate([prompt_length_P, completion_length_B]), rows, shared)


def _make_layout(
    token_ids_T: Indices, positions_T: Indices, segment_lengths: Indices, rows: Rows, shared: SharedPrompts | None
) -> Layout:
    return Layout(
        token_ids_T=torch.from_numpy(token_ids_T),
        positions_T=torch.from_numpy(positions_T),
        segment_starts=_to_int32(_find_starts(segment_lengths)),
        longest_segment=int(segment_lengths.max()),
        rows=rows,
        shared=shared,
    )


def make_padding(rows: Rows, num_tokens: int, equal_rows: bool, device: torch.device) -> Padding:
    length_B = rows.length_B
    if equal_rows:
        return Padding(((len(length_B), int(length_B[0])),), None, None)
    order_B = np.argsort(-length_B, kind="stable")
    shapes = choose_block_shapes(length_B[order_B].tolist())
    width_B = np.repeat([width for _, width in shapes], [count for count, _ in shapes])
    places_B = np.empty_like(length_B)
    places_B[order_B] = np.cumsum(width_B) - width_B
    num_places = int(width_B.sum())

    index_N = np.zeros(num_places, dtype=np.int64)
    ignored_N = np.ones(num_places, dtype=np.bool_)
    flat_T = np.zeros(num_tokens, dtype=np.int64)
    # Several rows write a shared prompt with the same bits; the gradient of one of them is enough.
    for starts_B, lengths_B, offsets_B in (
        (rows.shared_start_B, rows.shared_length_B, places_B),
        (rows.own_start_B, rows.own_length_B, places_B + rows.shared_length_B),
    ):
        tokens, places = list_ranges(starts_B, lengths_B), list_ranges(offsets_B, lengths_B)
        index_N[places] = tokens
        ignored_N[places] = False
        flat_T[tokens] = places
    return Padding(
        shapes,
        Selection.from_index(index_N, num_tokens, ignored_N).to(device),
        Selection.from_index(flat_T, num_places).to(device),
    )


def choose_block_shapes(lengths: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return (rows, width) of blocks with bounded padding, for rows sorted by decreasing length."""
    shapes: list[tuple[int, int]] = []
    tokens = 0
    for length in lengths:
        count, width = shapes[-1] if shapes else (0, 0)
        padding = width * (count + 1) - tokens - length
        if shapes and padding <= max(PADDING_FREE, PADDING_SHARE * (tokens + length)):
            shapes[-1] = (count + 1, width)
            tokens += length
        else:
            shapes.append((1, length))
            tokens = length
    return tuple(shapes)


def _find_starts(lengths: Indices) -> Indices:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])


def _join_ids(parts: Sequence[Sequence[int]], count: int) -> Indices:
    return np.fromiter(chain.from_iterable(parts), np.int64, count)


def _to_int32(values: Indices) -> Tensor:
    return torch.from_numpy(values.astype(np.int32))
