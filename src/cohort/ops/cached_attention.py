"""Modules of transformers driven over a cache of ours: the attention function they call, and the cache of a batch of prompts.

Hugging Face modules are driven unchanged: they hand keys and values to `past_key_values.update` and then call the
attention function named in their config. Both are ours while they are driven so:

- transformers builds no mask for an attention name it has no mask function for, and none is needed here: what a token may
  see is the cache's business;
- rows have lengths of their own, so a module that asks the cache for one length is refused.

The proof that a model runs on our attention (model/backbone.py) and the engine (engine/decoders.py) both rest on this.
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
"""Cache lengths are multiples of this: fused kernels on CUDA want aligned rows of the bias."""
BYTES_AT_ONCE = 2**28
"""Rows on their way from one place to another take about this much more memory, whatever their number."""


@dataclass(frozen=True, slots=True)
class KVShape:
    heads: int
    dim: int


StackedKV = dict[KVShape, Tensor]
"""By shape: [2 (keys, values), layers of that shape, P, kv_heads, T, D]."""


class KVBlocks:
    """Preallocated keys and values, [slots, kv_heads, T, D] per layer; live rows are always the first ones."""

    def __init__(self, layers: Sequence[KVShape], slots: int, length: int, dtype: torch.dtype, device: torch.device) -> None:
        self.length = -(-length // ALIGNMENT) * ALIGNMENT
        self.dtype = dtype
        self.members: dict[KVShape, list[int]] = {}
        """Layers by their shape: those of one shape share a block."""
        for number, shape in enumerate(layers):
            self.members.setdefault(shape, []).append(number)
        # Zeros, not empty memory: what a row does not see still enters the products, and 0 * NaN is NaN.
        self.blocks = {
            shape: torch.zeros(2, len(numbers), slots, shape.heads, self.length, shape.dim, dtype=dtype, device=device)
            for shape, numbers in self.members.items()
        }
        place = {number: (shape, at) for shape, numbers in self.members.items() for at, number in enumerate(numbers)}
        self.keys = [self.blocks[shape][0, at] for shape, at in (place[number] for number in range(len(layers)))]
        self.values = [self.blocks[shape][1, at] for shape, at in (place[number] for number in range(len(layers)))]

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self.blocks.values())

    def stack(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> StackedKV:
        """Keys and values of a batch of prompts, [P, kv_heads, T, D] per layer, as `load` wants them."""
        return {
            shape: torch.stack([torch.stack([tensors[number] for number in numbers]) for tensors in (keys, values)]).to(
                self.dtype
            )
            for shape, numbers in self.members.items()
        }

    def load(self, rows: Tensor, prompts: StackedKV, prompt_rows: Tensor) -> None:
        """Copy prompts into slots. Padding comes along: it is never seen and soon written over."""
        for shape, stacked in prompts.items():
            copy_rows(stacked, prompt_rows, self.blocks[shape][:, :, :, :, : stacked.shape[4]], rows)

    def move(self, sources: Tensor, targets: Tensor, length: int) -> None:
        """Copy the first `length` positions of rows into other rows."""
        for block in self.blocks.values():
            live = block[:, :, :, :, :length]
            copy_rows(live, sources, live, targets)


def copy_rows(source: Tensor, source_rows: Tensor, target: Tensor, target_rows: Tensor) -> None:
    """Rows (dimension 2) of one tensor into another, or into other rows of the same."""
    at_once = max(1, BYTES_AT_ONCE // max(1, source[:, :, :1].numel() * source.itemsize))
    for sources, targets in zip(source_rows.split(at_once), target_rows.split(at_once), strict=True):
        target.index_copy_(2, targets, source.index_select(2, sources))


def kv_bytes(layers: Sequence[KVShape], dtype: torch.dtype) -> int:
    """Bytes of keys and values of one token."""
    return 2 * dtype.itemsize * sum(layer.heads * layer.dim for layer in layers)


SLOT_ATTENTION = "cohort_slots"


class AttendingCache(Protocol):
    """What `past_key_values` must be while our attention function is switched on."""

    def attend(
        self, layer: int | None, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None, softcap: float
    ) -> Tensor:
        """[B, H, Q, D] queries in, [B, Q, H, D] out."""
        ...


ACTIVE: ContextVar[AttendingCache] = ContextVar("cohort_active_cache")


def read_cache(
    module: Any, query: Tensor, key: Tensor, value: Tensor, scaling: float, window: int | None, softcap: float
) -> Tensor:
    return ACTIVE.get().attend(getattr(module, "layer_idx", None), query, key, value, scaling, window, softcap)


register_attention(SLOT_ATTENTION, read_cache)


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
        return attend_causally(query, key, value, scaling, window, softcap)


def hidden_states(backbone: Any, cache: AttendingCache, input_ids_BT: Tensor, position_ids_BT: Tensor) -> Tensor:
    """Last hidden states [B, T, H] of the backbone with our cache and attention (inside `use_attention`)."""
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
    rows = list(prompts)
    while count_missing_rows(len(rows) * width, device, find_activated_width(backbone.config)):
        rows.append(())
    token_ids_PT = torch.tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in rows], device=device)
    position_ids_PT = torch.arange(width, device=device).expand(len(rows), width)
    cache = PrefixCache(num_layers)
    hidden_PTH = hidden_states(backbone, cache, token_ids_PT, position_ids_PT)
    last_P = torch.tensor([len(prompt) - 1 for prompt in prompts], device=device)
    return cache, hidden_PTH[torch.arange(len(prompts), device=device), last_P]
