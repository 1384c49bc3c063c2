"""Taking rows of a tensor by an index, with a backward that is a gather too.

PyTorch's own backward of `index_select` adds up with atomics on a GPU, so that a row taken twice gets a gradient whose last
bits change from run to run. Which rows are taken is known when a micro-batch is packed: the way back is worked out there, on
the host, and the sums then always run in the same order.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Indices = NDArray[np.int64]
Record = TypeVar("Record", bound=Any)


@dataclass(frozen=True, eq=False)
class Selection:
    """Rows of a tensor of S sources, in the order of N outputs."""

    index_N: Tensor
    once_S: Tensor
    """An output that each source was taken for; anything where there is none."""
    unused_S: Tensor | None
    """None: every source is used."""
    repeated_K: Tensor | None
    """Sources that are taken more than once; None: there are none."""
    places_KR: Tensor | None
    """All outputs of each of those."""
    absent_KR: Tensor | None
    """Where a source of K has fewer than R outputs; None: all have R."""

    @classmethod
    def from_index(cls, index_N: Indices, num_sources: int, ignored_N: NDArray[np.bool_] | None = None) -> Selection:
        """`ignored_N`: outputs whose gradient goes nowhere, such as padding."""
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
    """A dataclass with all of its fields that can be moved on another device."""
    values: dict[str, Any] = {field.name: getattr(record, field.name) for field in fields(record)}
    return replace(record, **{name: value.to(device) for name, value in values.items() if hasattr(value, "to")})


def take(source: Tensor, selection: Selection) -> Tensor:
    """source[index] along the first dimension."""
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
    """The gradient of the source from that of what was taken: a source taken several times gets the sum."""
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
    """The mask over the first dimensions of `like`, ready to be broadcast over the others."""
    return mask.view(*mask.shape, *[1] * (like.dim() - mask.dim()))


def list_ranges(starts_B: Indices, lengths_B: Indices) -> Indices:
    """start, start + 1, ... of each row, one after the other."""
    firsts_B = np.cumsum(lengths_B) - lengths_B
    return np.arange(lengths_B.sum()) + np.repeat(starts_B - firsts_B, lengths_B)
