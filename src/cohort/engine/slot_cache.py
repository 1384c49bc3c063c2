"""The KV cache of the local engine and the attention over it.

Hugging Face modules are driven unchanged: they hand keys and values to `past_key_values.update` and then call the
attention function named in their config. Both are ours while the engine runs, and they differ from the usual ones so:

- a *slot* is one row of a preallocated cache; rows have their own lengths (ragged), nothing is padded on the left and
  nothing is concatenated: a token is written in place, at its row and position;
- transformers builds no mask for an attention name it has no mask function for; on a GPU a kernel reads each row as far as
  it is long, elsewhere rows are told apart by one additive bias per step, made once and used by all layers;
- grouped queries are laid out as [B, kv_heads, group, D], so keys and values are read where they lie, never repeated.

Attention features that are not honoured here are refused by name: an ignored argument would be a different model.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface

from cohort.errors import EngineError
from cohort.ops.attention import accumulation_dtype, additive, attention, causal_attention, check_plain_causal, visible
from cohort.ops.kv import ALIGNMENT, KVBlocks, KVShape
from cohort.ops.rounding import missing_rows

SLOT_ATTENTION = "cohort_slots"


class AttendingCache(Protocol):
    """What `past_key_values` must be while our attention function is switched on."""

    def attend(
        self, layer: int | None, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None, softcap: float
    ) -> Tensor:
        """[B, H, Q, D] queries in, [B, Q, H, D] out."""
        ...


ACTIVE: ContextVar[AttendingCache] = ContextVar("cohort_active_cache")


def slot_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    scale = check_plain_causal(module, query, attention_mask, dropout, scaling, is_causal, kwargs)
    cache = ACTIVE.get()
    out = cache.attend(getattr(module, "layer_idx", None), query, key, value, scale, sliding_window, softcap or 0.0)
    return out, None


AttentionInterface.register(SLOT_ATTENTION, slot_attention)


class RaggedCache:
    """What both caches share: being asked for one length is an error, since rows have different lengths."""

    is_compileable = False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        raise EngineError("its modules ask the cache for a single length, but every row has its own")


class PrefixCache(RaggedCache):
    """Keys and values of a right-padded batch of prompts, kept as the modules hand them over.

    Causal attention from the right-padded end needs no mask: a real token never looks at the padding after it.
    """

    def __init__(self, num_layers: int) -> None:
        self.keys: list[Tensor | None] = [None] * num_layers
        self.values: list[Tensor | None] = [None] * num_layers
        self.windows: list[int | None] = [None] * num_layers
        """Sliding window that each layer asked for."""

    def all(self) -> tuple[list[Tensor], list[Tensor]]:
        """Keys and values of every layer."""
        return [key for key in self.keys if key is not None], [value for value in self.values if value is not None]

    def update(self, key: Tensor, value: Tensor, layer: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if key.shape != value.shape:
            raise EngineError("its keys and values have different shapes (multi-head latent attention)")
        self.keys[layer], self.values[layer] = key, value
        return key, value

    def attend(
        self, layer: int | None, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None, softcap: float
    ) -> Tensor:
        if layer is not None:
            self.windows[layer] = window
        return causal_attention(query, key, value, scaling, window, softcap)


class SlotCache(RaggedCache):
    """The keys and values of the slots (kv.py), as the modules of transformers want to be handed a cache."""

    def __init__(self, layers: Sequence[KVShape], slots: int, length: int, dtype: torch.dtype, device: torch.device) -> None:
        self.blocks = KVBlocks(layers, slots, length, accumulation_dtype(dtype, device), device)
        self.dtype, self.length = self.blocks.dtype, self.blocks.length
        self.with_kernels = with_kernels(device)
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
            seen_BT = visible(self.positions_B[:, None], self.at_T[None, : self.live_length], window)
            self.biases[window] = additive(seen_BT, self.dtype)[:, None, None]
        grouped = query.to(self.dtype).reshape(rows, key.shape[1], query_heads // key.shape[1], dim)
        out = attention(grouped, key, value, self.biases[window], scaling, softcap)
        return out.to(query.dtype).reshape(rows, 1, query_heads, dim)


def with_kernels(device: torch.device) -> bool:
    """Whether attention over the slots runs as a Triton kernel; elsewhere it is spelled out in torch."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


def hidden_states(backbone: Any, cache: PrefixCache | SlotCache, input_ids_BT: Tensor, position_ids_BT: Tensor) -> Tensor:
    """Last hidden states [B, T, H] of the backbone with our cache and attention (inside `attending`)."""
    token = ACTIVE.set(cache)
    try:
        output = backbone(input_ids=input_ids_BT, position_ids=position_ids_BT, past_key_values=cache, use_cache=True)
    finally:
        ACTIVE.reset(token)
    return output.last_hidden_state


def prefill(
    backbone: Any, num_layers: int, prompts: Sequence[Sequence[int]], device: torch.device
) -> tuple[PrefixCache, Tensor]:
    """Run prompts as one right-padded batch; give their keys and values and the hidden states [P, H] at their last tokens."""
    width = max(map(len, prompts))
    rows = [*prompts, *[()] * -(-missing_rows(len(prompts) * width, device) // width)]
    token_ids_PT = torch.tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in rows], device=device)
    position_ids_PT = torch.arange(width, device=device).expand(len(rows), width)
    cache = PrefixCache(num_layers)
    hidden_PTH = hidden_states(backbone, cache, token_ids_PT, position_ids_PT)
    last_P = torch.tensor([len(prompt) - 1 for prompt in prompts], device=device)
    return cache, hidden_PTH[torch.arange(len(prompts), device=device), last_P]
