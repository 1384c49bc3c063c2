"""Rows of a cache of transformers: chosen, joined and cut short, whatever its layers keep.

A layer keeps keys and values, which grow with the sequence, or states of one size (convolutions, recurrences), or both. Rows end
together: a shorter one is filled up on its left, before its first token, and a mask hides that part from attention. States have no
positions, so they need no filling, and must never have read any: every prompt is run without padding first.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cohort.errors import EngineError

GROWING = ("keys", "values")
"""[rows, heads, tokens, width]; whatever else has two dimensions or more is a state, [rows, ...]."""
RAGGED_LAYERS = {
    "DynamicLayer",
    "DynamicSlidingWindowLayer",
    "LinearAttentionLayer",
    "LinearAttentionAndFullAttentionLayer",
    "LinearAttentionAndSlidingWindowAttentionLayer",
}
"""Layers in which what a mask hides has no effect, at any length. Compressed and sparse keys are counted from the first place on: filling
moves them, and a short trial cannot show it."""

Change = Callable[[Any, str, Tensor], Tensor]
"""(layer, name, tensor) -> what stands there instead."""


class CacheRows:
    """Rows of a cache that all end after `length` tokens, filling included."""

    def __init__(self, cache: Any, rows: int, length: int) -> None:
        self.cache, self.rows, self.length = cache, rows, length

    @property
    def why_not_ragged(self) -> str | None:
        """Why rows of different lengths cannot stand side by side; None where they can."""
        others = sorted({type(layer).__name__ for layer in self.cache.layers} - RAGGED_LAYERS)
        return f"its cache has layers of the kind {', '.join(others)}" if others else None

    @property
    def grows(self) -> bool:
        """Whether any layer keeps keys and values; states alone need no mask, and their modules misread one."""
        return any(name in GROWING for layer in self.cache.layers for _, name, _ in list_tensors(layer))

    def take_rows(self, rows: Tensor) -> CacheRows:
        """A copy of these rows, in this order; one may be taken more than once."""
        return self._change_tensors(lambda layer, name, tensor: tensor.index_select(0, rows), len(rows), self.length)

    def take_first(self, rows: int) -> CacheRows:
        return self if rows >= self.rows else self._change_tensors(lambda layer, name, tensor: tensor[:rows], rows, self.length)

    def fit_length(self, length: int) -> CacheRows:
        """The same rows, filled up or cut on their left to this length."""

        def fit(layer: Any, name: str, tensor: Tensor) -> Tensor:
            if name not in GROWING:
                return tensor
            window = getattr(layer, "sliding_window", None)  # such a layer keeps one token less than its window
            missing = (length if window is None else min(length, window - 1)) - tensor.shape[-2]
            # Zeros, not empty memory: what a row does not see still enters the products, and 0 * NaN is NaN.
            return F.pad(tensor, (0, 0, missing, 0)) if missing > 0 else tensor[..., -missing:, :]

        return self if length == self.length else self._change_tensors(fit, self.rows, length)

    def join(self, other: CacheRows) -> CacheRows:
        """These rows and then the others."""
        length = max(self.length, other.length)
        added = iter([tensor for layer in other.fit_length(length).cache.layers for _, _, tensor in list_tensors(layer)])

        def with_more(layer: Any, name: str, tensor: Tensor) -> Tensor:
            more = next(added, None)
            if more is None or more.shape[1:] != tensor.shape[1:]:
                raise EngineError(f"its cache keeps {name} in another shape for another prompt")
            return torch.cat((tensor, more))

        return self.fit_length(length)._change_tensors(with_more, self.rows + other.rows, length)

    def overwrite_rows(self, sources: Tensor, targets: Tensor) -> None:
        """Rows change their place, in the tensors that are there."""
        for layer in self.cache.layers:
            for _, _, tensor in list_tensors(layer):
                tensor[targets] = tensor[sources]

    def estimate_bytes(self, length: int) -> int:
        """What one row would take at this length."""
        total = 0.0
        for layer in self.cache.layers:
            for _, name, tensor in list_tensors(layer):
                total += tensor.nbytes / self.rows * (length / tensor.shape[-2] if name in GROWING else 1.0)
        return int(total)

    def _change_tensors(self, change: Change, rows: int, length: int) -> CacheRows:
        cache = copy.copy(self.cache)
        cache.layers = [copy_layer(layer) for layer in self.cache.layers]
        for layer in cache.layers:
            for holder, name, tensor in list_tensors(layer):
                holder[name] = change(layer, str(name), tensor)
            if hasattr(layer, "cumulative_length"):
                layer.cumulative_length = length
        return CacheRows(cache, rows, length)


def copy_layer(layer: Any) -> Any:
    """A layer that can be given other tensors without the first one noticing."""
    twin = copy.copy(layer)
    vars(twin).update({name: dict(value) for name, value in vars(layer).items() if isinstance(value, dict)})
    return twin


def list_tensors(layer: Any) -> Iterator[tuple[dict[Any, Any], Any, Tensor]]:
    """(what holds it, its name there, the tensor) of everything that has a row for each row of the batch."""
    fields = vars(layer)
    for holder in [fields, *(value for value in fields.values() if isinstance(value, dict))]:
        for name, value in list(holder.items()):
            if isinstance(value, Tensor) and value.dim() > 1:
                yield holder, name, value
