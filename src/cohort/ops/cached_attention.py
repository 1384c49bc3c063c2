"""Key-value caches for decoding, and the attention function with which unchanged modules of transformers use them.

Slots are preallocated in a few large tensors: one block for all layers of the same shape, so that starting a completion or
moving a row is a few large copies instead of hundreds of small ones. Modules pass keys and values to `past_key_values.update`
and then call the attention function named in their config; both are ours during a call:

- transformers builds no mask for our attention, and none is needed: the cache determines what a token may see;
- rows have different lengths, so a module that asks the cache for a single length is refused.

model/backbone.py, which proves that a model runs with this attention, and engine/decoders.py rest on this.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from cohort.errors import EngineError
from cohort.ops.attention import attend_causally, register_attention
from cohort.ops.products import count_missing_rows, find_activated_width

ALIGNMENT = 8
"""Cache lengths are multiples of this, because fused CUDA kernels want aligned rows of the bias."""
BYTES_AT_ONCE = 2**28
"""Extra memory for copying rows, whatever their number."""


@dataclass(frozen=True, slots=True)
class KVShape:
    heads: int
    dim: int


StackedKV = dict[KVShape, Tensor]
"""Shape -> [2 (keys, values), layers of that shape, P, kv_heads, T, D]."""


class KVBlocks:
    """Preallocated keys and values, [slots, kv_heads, T, D] per layer. Live rows come first."""

    def __init__(self, layers: Sequence[KVShape], slots: int, length: int, dtype: torch.dtype, device: torch.device) -> None:
        self.length = -(-length // ALIGNMENT) * ALIGNMENT
        self.dtype = dtype
        self.members: dict[KVShape, list[int]] = {}
        """Shape -> layers. Layers of the same shape share a block."""
        for number, shape in enumerate(layers):
            self.members.setdefault(shape, []).append(number)
        # Zeros rather than empty memory: hidden positions still enter the products, and 0 * NaN is NaN.
        self.blocks = {
            shape: torch.zeros(2, len(numbers), slots, shape.heads, self.length, shape.dim, dtype=dtype, device=device)
            for shape, numbers in self.members.items()
        }
        place = {number: (shape, at) for shape, numbers in self.members.items() for at, number in enumerate(numbers)}
        self.keys = [self.blocks[shape][0, at] for shape, at in (place[number] for number in range(len(layers)))]
        self.values = [self.blocks[shape][1, at] for shape, at in (place[number] for number in range(len(layers)))]

    def stack(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> StackedKV:
        """Stack keys and values of a batch of prompts, [P, kv_heads, T, D] per layer, for `load`."""
        return {
            shape: torch.stack([torch.stack([tensors[number] for number in numbers]) for tensors in (keys, values)]).to(
                self.dtype
            )
            for shape, numbers in self.members.items()
        }

    def load(self, rows: Tensor, prompts: StackedKV, prompt_rows: Tensor) -> None:
        """Copy prompts into slots, with their padding, which is hidden and soon overwritten."""
        for shape, stacked in prompts.items():
            copy_rows(stacked, prompt_rows, self.blocks[shape][:, :, :, :, : stacked.shape[4]], rows)

    def move(self, sources: Tensor, targets: Tensor, length: int) -> None:
        """Copy the first `length` positions of rows into other rows."""
        for block in self.blocks.values():
            live = block[:, :, :, :, :length]
            copy_rows(live, sources, live, targets)


def copy_rows(source: Tensor, source_rows: Tensor, target: Tensor, target_rows: Tensor) -> None:
    """Copy rows (dimension 2) from one tensor to another, or within one."""
    at_once = max(1, BYTES_AT_ONCE // max(1, source[:, :, :1].numel() * source.itemsize))
    for sources, targets in zip(source_rows.split(at_once), target_rows.split(at_once), strict=True):
        target.index_copy_(2, targets, source.index_select(2, sources))


def kv_bytes(layers: Sequence[KVShape], dtype: torch.dtype) -> int:
    """Return the bytes of keys and values per token."""
    return 2 * dtype.itemsize * sum(layer.heads * layer.dim for layer in layers)


SLOT_ATTENTION = "cohort_slots"


class AttendingCache(Protocol):
    """The interface of `past_key_values` while our attention is switched on."""

    def attend(
        self, layer: int | None, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None, softcap: float
    ) -> Tensor:
        """Attend from [B, H, Q, D] queries; returns [B, Q, H, D]."""
        ...


ACTIVE: ContextVar[AttendingCache] = ContextVar("cohort_active_cache")


def read_cache(
    module: Any, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None, softcap: float
) -> Tensor:
    return ACTIVE.get().attend(getattr(module, "layer_idx", None), query, key, value, scaling, window, softcap)


register_attention(SLOT_ATTENTION, read_cache)


class RaggedCache:
    """Base of both caches: refuses to report a single length, because rows have different ones."""

    is_compileable = False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        raise EngineError("its modules ask the cache for a single length, but every row has its own")


class PrefixCache(RaggedCache):
    """Keys and values of a right-padded batch of prompts, as the modules pass them.

    Causal attention needs no mask here: a real token never sees the padding after it.
    """

    def __init__(self, num_layers: int) -> None:
        self.keys: list[Tensor | None] = [None] * num_layers
        self.values: list[Tensor | None] = [None] * num_layers
        self.windows: list[int | None] = [None] * num_layers
        """The sliding window of each layer."""

    def all(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return keys and values of every layer."""
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
        return attend_causally(query, key, value, scaling, window, softcap)


def hidden_states(backbone: Any, cache: AttendingCache, input_ids_BT: Tensor, position_ids_BT: Tensor) -> Tensor:
    """Run the backbone with our cache and attention (inside `use_attention`); returns the last hidden states [B, T, H]."""
    token = ACTIVE.set(cache)
    try:
        output = backbone(input_ids=input_ids_BT, position_ids=position_ids_BT, past_key_values=cache, use_cache=True)
    finally:
        ACTIVE.reset(token)
    return output.last_hidden_state


def prefill(
    backbone: Any, num_layers: int, prompts: Sequence[Sequence[int]], device: torch.device
) -> tuple[PrefixCache, Tensor]:
    """Run prompts as one right-padded batch; returns keys and values, and the hidden states [P, H] of the last tokens."""
    width = max(map(len, prompts))
    rows = list(prompts)
    while count_missing_rows(len(rows) * width, device, find_activated_width(backbone.config)):
        rows.append(())
    token_ids_PT = torch.tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in rows], device=device)
    position_ids_PT = torch.arange(width, device=device).expand(len(rows), width)
    cache = PrefixCache(num_layers)
    hidden_PTH = hidden_states(backbone, cache, token_ids_PT, position_ids_PT)
    last_P = torch.tensor([len(prompt) - 1 for prompt in prompts], device=device)
    return cache, hidden_PTH[torch.arange(len(prompts), device=device), last_P]
