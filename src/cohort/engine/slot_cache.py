"""The KV cache of the local engine and the attention over it.

The modules of transformers write into it through ops/cached_attention.py. It differs from the usual caches so:

- a *slot* is one row of a preallocated cache; rows have their own lengths (ragged), nothing is padded on the left and
  nothing is concatenated: a token is written in place, at its row and position;
- on a GPU a kernel reads each row as far as it is long, elsewhere rows are told apart by one additive bias per step, made
  once and used by all layers;
- grouped queries are laid out as [B, kv_heads, group, D], so keys and values are read where they lie, never repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cohort.ops.attention import attention, choose_accumulation_dtype, find_visible, make_bias
from cohort.ops.cached_attention import ALIGNMENT, KVBlocks, KVShape, RaggedCache
from cohort.ops.fused import has_kernels


class SlotCache(RaggedCache):
    """The keys and values of the slots (kv.py), as the modules of transformers want to be handed a cache."""

    def __init__(self, layers: Sequence[KVShape], slots: int, length: int, dtype: torch.dtype, device: torch.device) -> None:
        self.blocks = KVBlocks(layers, slots, length, choose_accumulation_dtype(dtype, device), device)
        self.dtype, self.length = self.blocks.dtype, self.blocks.length
        self.with_kernels = has_kernels(device)
        self.heads = [layer.heads for layer in layers]
        # In a cache seen as [slots * kv_heads * T, D], where row r of head h begins.
        slot, start = torch.arange(slots, device=device)[:, None], {}
        for heads in set(self.heads):
            start[heads] = (slot * heads + torch.arange(heads, device=device)) * self.length
        self.start_SK = start
        self.flat_keys = [keys.view(-1, keys.shape[-1]) for keys in self.blocks.keys]
        self.flat_values = [values.view(-1, values.shape[-1]) for values in self.blocks.values]
        self.at_T = torch.arange(self.length, device=device)
        self.rows, self.live_length = 0, 0
        self.positions_B = self.done_B = self.at_T
        self.written: dict[int, Tensor] = {}
        self.biases: dict[int | None, Tensor] = {}

    def begin_step(self, positions_B: Tensor, done_B: Tensor, longest: int) -> None:
        """Before each decode step: where each row writes, which rows are done, and how far the longest one reaches."""
        self.rows = len(positions_B)
        self.live_length = min(-(-longest // ALIGNMENT) * ALIGNMENT, self.length)
        self.positions_B, self.done_B = positions_B, done_B
        self.written = {k: (start[: self.rows] + positions_B[:, None]).flatten() for k, start in self.start_SK.items()}
        self.biases.clear()

    def update(self, key: Tensor, value: Tensor, layer: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        at, dim = self.written[self.heads[layer]], key.shape[-1]
        self.flat_keys[layer].index_copy_(0, at, key.reshape(-1, dim).to(self.dtype))
        self.flat_values[layer].index_copy_(0, at, value.reshape(-1, dim).to(self.dtype))
        keys, values = self.blocks.keys[layer], self.blocks.values[layer]
        if self.with_kernels:
            return keys, values
        return keys[: self.rows, :, : self.live_length], values[: self.rows, :, : self.live_length]

    def attend(
        self, layer: int | None, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None, softcap: float
    ) -> Tensor:
        rows, query_heads, _, dim = query.shape
        if self.with_kernels:
            from cohort.ops.fused.kernels_decode import attend

            one = query.to(self.dtype).reshape(rows, query_heads, dim)
            out = attend(one, key, value, self.positions_B, self.done_B, scaling, window, softcap)
            return out.to(query.dtype).reshape(rows, 1, query_heads, dim)
        if window not in self.biases:
            seen_BT = find_visible(self.positions_B[:, None], self.at_T[None, : self.live_length], window)
            self.biases[window] = make_bias(seen_BT, self.dtype)[:, None, None]
        grouped = query.to(self.dtype).reshape(rows, key.shape[1], query_heads // key.shape[1], dim)
        out = attention(grouped, key, value, self.biases[window], scaling, softcap)
        return out.to(query.dtype).reshape(rows, 1, query_heads, dim)
